"""The guest of this process, from its first to its last moment: one object with one state.

    off ──arm──▶ armed ──record──▶ recording ──withdraw──▶ leaving ──out──▶ gone

``init`` and an agent that attaches begin from anywhere; ``shutdown`` ends anywhere. Only an armed
guest creates the segment at the first record. A forked child of a recording process is armed and
gets a segment of its own. What hooks into torch is told by the guest, and knows nothing of it.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from dfx_agent.shim import (
    adapters,
    clients,
    compiling,
    failures,
    identity,
    imports,
    patches,
    recorder,
    residue,
)
from dfx_agent.wire import Identity, default_directory
from dfx_agent.wire.layout import STATE_DETACHED

if TYPE_CHECKING:  # loaded with torch: see _load_hooks
    from dfx_agent.shim.torch.hooks import TorchHooks

State = Literal["off", "armed", "recording", "leaving", "gone"]
# refuse: the folder cannot be used; withdraw: leave while the job goes on; out: the last hook is
# out; fork: this is the child of a process that recorded
Event = Literal["arm", "record", "refuse", "withdraw", "out", "stop", "fork"]

# from where an event leads where; from anywhere else it changes nothing
_ANYWHERE: frozenset[State] = frozenset({"off", "armed", "recording", "leaving", "gone"})
_LEADS: dict[Event, tuple[frozenset[State], State]] = {
    "arm": (frozenset({"off", "gone"}), "armed"),
    "record": (_ANYWHERE, "recording"),
    "refuse": (frozenset({"armed"}), "off"),
    "withdraw": (_ANYWHERE, "leaving"),
    "out": (frozenset({"leaving"}), "gone"),
    "stop": (_ANYWHERE, "gone"),
    "fork": (frozenset({"recording"}), "armed"),
}


def following(state: State, event: Event) -> State:
    """The state after ``event``."""
    sources, target = _LEADS[event]
    return target if state in sources else state


class Guest:
    """State of the one guest of this process; nothing here raises into the job but ``begin``."""

    def __init__(self) -> None:
        self.state: State = "off"
        self.visit: Any = None  # of an agent that brought us in, see attached.py
        self.last_visit: Any = None  # whose last hooks are still to come out
        self.unload: Callable[[], None] | None = None  # forgets modules that a visit brought
        self.hooks: TorchHooks | None = None  # None until torch is there, or somebody watches
        self._loops: Any = None  # who watches event loops, once asyncio is there
        self._lock = threading.RLock()
        self._is_refused = False
        self._inherited: Identity | None = None  # who we are, where the parent of a fork knew it
        self._at_exit: Any = None
        self._finalizer: Any = None

    def arm(self) -> None:
        """Record from the first record on: a process that has nothing to say gets no segment."""
        self._to("arm")
        imports.when_imported("torch", self.hook_torch)
        adapters.install()

    def start(self, directory: str | None, **known: Any) -> bool:
        """Create the segment, or update who we are; True when this process is observed."""
        compiling.look_for_torch()
        with self._lock:
            try:
                if recorder.current is not None:
                    recorder.current.update_identity(identity.checked(known))
                elif not self._is_refused:
                    self._create(directory or default_directory(), identity.checked(known))
            except Exception as error:  # noqa: BLE001 (never into the job)
                self._refuse(str(error) or type(error).__name__)
            return recorder.current is not None

    def begin(self, directory: str, known: dict[str, Any]) -> None:
        """``start`` for a guest that came by attach: what goes wrong is raised, not printed."""
        compiling.look_for_torch()
        with self._lock:
            if recorder.current is None:
                self._create(directory, identity.checked(known))

    def withdraw(self, gone: Callable[[], None]) -> None:
        """Close the segment and leave the interpreter as it was, while the job goes on.

        Called in a thread of the guest; ``gone`` is called when the last hook is out, maybe later
        and by the thread that trains, and never if an agent is back by then.
        """
        with self._lock:
            self._to("withdraw")
            writer, recorder.current = recorder.current, None
            imports.forget()
            if self._loops is not None:
                self._loops.stop()
            if self._at_exit is not None:
                self._at_exit.detach()
            if self._finalizer is not None:
                self._finalizer.cancel()
        if writer is not None:
            writer.finish(STATE_DETACHED)
            writer.retire()

        def out() -> None:
            if self._to("out"):
                gone()

        if self.hooks is None:
            patches.restore_all()
            out()
        else:
            self.hooks.withdraw(out)

    def stop(self) -> None:
        """Close the segment in an orderly way and stay off."""
        with self._lock:
            self._to("stop")
            imports.forget()
            if self._loops is not None:
                self._loops.stop()
            if self.hooks is not None:
                self.hooks.remove()
            else:
                patches.restore_all()  # adapters work without torch too
            writer, recorder.current = recorder.current, None
            if writer is not None and writer.pid == os.getpid():
                writer.finish()

    def hook_torch(self) -> None:
        """In a process that has torch: only such a one pays for loading this."""
        self._load_hooks().install()

    def watch(self) -> None:
        """Start the guest's own thread, without torch too."""
        self._load_hooks().start_watch(always=True)

    def after_fork(self) -> None:
        """The child gets a segment of its own, at its first record; the parent's is left alone."""
        self._lock = threading.RLock()
        residue.renew_lock()
        self._loops = None
        writer, recorder.current = recorder.current, None
        if writer is None:
            return
        if self.hooks is not None:
            self.hooks.after_fork()
        if self.visit is None:
            role = f"{writer.identity.role}_child"[:32]
            self._inherited = replace(writer.identity, role=role)
            self._to("fork")
        else:  # the parent's: nobody would take it out of this child again
            self.visit = None
            if self.hooks is not None:
                self.hooks.remove()
            self._to("stop")
        writer.release()

    def _to(self, event: Event) -> bool:
        """Whether ``event`` led to another state."""
        before, self.state = self.state, following(self.state, event)
        recorder.start_late = self._start_late if self.state == "armed" else None
        return self.state != before

    def _start_late(self, **known: Any) -> recorder.Recorder | None:
        self.start(None, **known)
        return recorder.current

    def _create(self, directory: str, given: dict[str, Any]) -> None:
        who = self._inherited or identity.from_environment()
        recorder.current = recorder.Recorder(directory, replace(who, **given))
        self._to("record")
        self._follow_the_process()
        imports.when_imported("torch", self.hook_torch)
        adapters.install()
        adapters.report(recorder.current)
        clients.install()
        failures.install()
        imports.when_imported("asyncio", self._watch_loops)

    def _watch_loops(self) -> None:
        """In a process that has asyncio, for as long as it records."""
        from dfx_agent.shim.event_loops import LoopMonitor  # noqa: PLC0415 (asyncio's side)

        if recorder.current is not None:
            self._loops = self._loops or LoopMonitor()
            self._loops.start()

    def _load_hooks(self) -> TorchHooks:
        from dfx_agent.shim.torch.hooks import torch_hooks  # noqa: PLC0415 (torch's side)

        torch_hooks.look = self._look
        self.hooks = torch_hooks
        return torch_hooks

    def _look(self) -> None:
        visit = self.visit
        if visit is not None:
            visit.look()

    def _refuse(self, reason: str) -> None:
        """Say once what is not done as asked; the job goes on."""
        outcome = ""
        if recorder.current is None:
            self._is_refused = True
            self._to("refuse")
            outcome = " (this process runs unobserved)"
        line = " ".join(f"dfx-agent: {reason}{outcome}".split())
        print(line, file=sys.stderr)

    def _follow_the_process(self) -> None:
        """Its forks and its end."""
        residue.follow_forks(__name__, after_fork.__name__)
        if self._at_exit is None or not self._at_exit.alive:
            # and not atexit: that keeps a place for ever, also for what was unregistered
            self._at_exit = weakref.finalize(self, self.stop)
        # a forked multiprocessing child leaves by os._exit: only its own finalizers run
        multiprocessing = sys.modules.get("multiprocessing.process")
        util = sys.modules.get("multiprocessing.util")
        if multiprocessing and util and multiprocessing.parent_process() is not None:
            self._finalizer = util.Finalize(None, self._end_child, exitpriority=0)

    def _end_child(self) -> None:
        """A child of multiprocessing ends while its exception, if any, is being handled."""
        failures.note_in_flight()
        self.stop()


guest = Guest()


def after_fork() -> None:
    """In each forked child, by the one fork hook of this process."""
    guest.after_fork()
