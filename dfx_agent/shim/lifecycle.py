"""The guest of this process from start to end: one object with one state.

    off ──arm──▶ armed ──record──▶ recording ──withdraw──▶ leaving ──out──▶ gone

``init`` and an agent that attaches start recording from any state, and ``shutdown`` stops in any
state. Only an armed guest creates the segment at the first record. A forked child of a recording
process is armed and gets its own segment. The guest controls the hooks of torch, which do not know
the guest.
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
    permanent_state,
    recorder,
)
from dfx_agent.wire import Identity, default_directory
from dfx_agent.wire.layout import STATE_DETACHED

if TYPE_CHECKING:  # loaded with torch: see _load_hooks
    from dfx_agent.shim.torch.hooks import TorchHooks

State = Literal["off", "armed", "recording", "leaving", "gone"]
# refuse: the folder cannot be used; withdraw: leave while the job continues; out: the last hook is
# removed; fork: this process is a child of a process that recorded
Event = Literal["arm", "record", "refuse", "withdraw", "out", "stop", "fork"]

# event -> (states in which it has an effect, state after it)
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


def next_state(state: State, event: Event) -> State:
    """The state after ``event``."""
    sources, target = _LEADS[event]
    return target if state in sources else state


class Guest:
    """State of the one guest of this process. No method but ``begin`` raises into the job."""

    def __init__(self) -> None:
        self.state: State = "off"
        self.attachment: Any = None  # set while an agent is attached, see attached.py
        self.last_attachment: Any = None  # detached, but its last hooks are not removed yet
        self.unload: Callable[[], None] | None = None  # removes modules that an attach loaded
        self.hooks: TorchHooks | None = None  # None until torch is loaded or a thread watches
        self._loops: Any = None  # LoopMonitor, once asyncio is loaded
        self._lock = threading.RLock()
        self._is_refused = False
        self._inherited: Identity | None = None  # of the parent process, after a fork
        self._at_exit: Any = None
        self._finalizer: Any = None

    def arm(self) -> None:
        """Wait for the first record: a process that records nothing gets no segment."""
        self._to("arm")
        imports.when_imported("torch", self.hook_torch)
        adapters.install()

    def start(self, directory: str | None, **fields: Any) -> bool:
        """Create the segment, or update the identity; return whether the process is observed."""
        compiling.look_for_torch()
        with self._lock:
            try:
                if recorder.current is not None:
                    recorder.current.update_identity(identity.checked(fields))
                elif not self._is_refused:
                    self._create(directory or default_directory(), identity.checked(fields))
            except Exception as error:  # noqa: BLE001 (never into the job)
                self._refuse(str(error) or type(error).__name__)
            return recorder.current is not None

    def begin(self, directory: str, fields: dict[str, Any]) -> None:
        """Start a guest that an agent attached; unlike ``start``, raise errors."""
        compiling.look_for_torch()
        with self._lock:
            if recorder.current is None:
                self._create(directory, identity.checked(fields))

    def withdraw(self, on_gone: Callable[[], None]) -> None:
        """Close the segment and restore the interpreter while the job continues.

        Called in a thread of the guest. ``on_gone`` is called when the last hook is removed, maybe
        later and by the training thread. It is never called if an agent has attached again.
        """
        with self._lock:
            self._to("withdraw")
            writer, recorder.current = recorder.current, None
            imports.cancel_all()
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
                on_gone()

        if self.hooks is None:
            patches.restore_all()
            out()
        else:
            self.hooks.withdraw(out)

    def stop(self) -> None:
        """Close the segment in an orderly way and record nothing more."""
        with self._lock:
            self._to("stop")
            imports.cancel_all()
            if self._loops is not None:
                self._loops.stop()
            if self.hooks is not None:
                self.hooks.remove()
            else:
                patches.restore_all()  # adapters also work without torch
            writer, recorder.current = recorder.current, None
            if writer is not None and writer.pid == os.getpid():
                writer.finish()

    def hook_torch(self) -> None:
        """Install the torch hooks; only a process with torch pays for loading them."""
        self._load_hooks().install()

    def watch(self) -> None:
        """Start the guest's own thread, even without torch."""
        self._load_hooks().start_watch(always=True)

    def after_fork(self) -> None:
        """Give a forked child its own segment at its first record; the parent's is not touched."""
        self._lock = threading.RLock()
        permanent_state.renew_lock()
        self._loops = None
        writer, recorder.current = recorder.current, None
        if writer is None:
            return
        if self.hooks is not None:
            self.hooks.after_fork()
        if self.attachment is None:
            role = f"{writer.identity.role}_child"[:32]
            self._inherited = replace(writer.identity, role=role)
            self._to("fork")
        else:  # the agent is attached to the parent: nobody would detach from this child
            self.attachment = None
            if self.hooks is not None:
                self.hooks.remove()
            self._to("stop")
        writer.unmap()

    def _to(self, event: Event) -> bool:
        """Apply an event; return whether the state changed."""
        before, self.state = self.state, next_state(self.state, event)
        recorder.start_late = self._start_late if self.state == "armed" else None
        return self.state != before

    def _start_late(self, **fields: Any) -> recorder.Recorder | None:
        self.start(None, **fields)
        return recorder.current

    def _create(self, directory: str, given: dict[str, Any]) -> None:
        who = self._inherited or identity.from_environment()
        recorder.current = recorder.Recorder(directory, replace(who, **given))
        self._to("record")
        self._register_exit_and_fork()
        imports.when_imported("torch", self.hook_torch)
        adapters.install()
        adapters.report(recorder.current)
        clients.install()
        failures.install()
        imports.when_imported("asyncio", self._watch_loops)

    def _watch_loops(self) -> None:
        """Monitor event loops, in a process that has asyncio, as long as it records."""
        from dfx_agent.shim.event_loops import LoopMonitor  # noqa: PLC0415 (asyncio's side)

        if recorder.current is not None:
            self._loops = self._loops or LoopMonitor()
            self._loops.start()

    def _load_hooks(self) -> TorchHooks:
        from dfx_agent.shim.torch.hooks import torch_hooks  # noqa: PLC0415 (torch's side)

        torch_hooks.check = self._check_attachment
        self.hooks = torch_hooks
        return torch_hooks

    def _check_attachment(self) -> None:
        attachment = self.attachment
        if attachment is not None:
            attachment.check()

    def _refuse(self, reason: str) -> None:
        """Print once that the process cannot be observed; the job continues."""
        outcome = ""
        if recorder.current is None:
            self._is_refused = True
            self._to("refuse")
            outcome = " (this process runs unobserved)"
        line = " ".join(f"dfx-agent: {reason}{outcome}".split())
        print(line, file=sys.stderr)

    def _register_exit_and_fork(self) -> None:
        """Get called when this process forks or exits."""
        permanent_state.follow_forks(__name__, after_fork.__name__)
        if self._at_exit is None or not self._at_exit.alive:
            # not atexit, which retains its table entry even for an unregistered function
            self._at_exit = weakref.finalize(self, self.stop)
        # a forked multiprocessing child leaves by os._exit: only its own finalizers run
        multiprocessing = sys.modules.get("multiprocessing.process")
        util = sys.modules.get("multiprocessing.util")
        if multiprocessing and util and multiprocessing.parent_process() is not None:
            self._finalizer = util.Finalize(None, self._end_child, exitpriority=0)

    def _end_child(self) -> None:
        """Stop in a child of multiprocessing, and record the exception that ends it, if any."""
        failures.note_in_flight()
        self.stop()


guest = Guest()


def after_fork() -> None:
    """Update the guest in a forked child; the one fork hook of this process calls this."""
    guest.after_fork()
