"""Start, stop and fork of the guest. ``arm`` is what preloaded code calls; it never raises."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dfx_agent.shim import (
    adapters,
    clients,
    compiling,
    identity,
    imports,
    patches,
    recorder,
    residue,
)
from dfx_agent.wire import Identity, default_directory

_lock = threading.RLock()
_refused = False
_at_exit: Any = None
_finalizer: Any = None
_inherited: Identity | None = None


def arm() -> None:
    """Record from the first record on: a process that has nothing to say gets no segment."""
    recorder.start_late = _start_late
    imports.when_imported("torch", _install_torch_hooks)
    adapters.install()


def start(directory: str | None, **known: Any) -> bool:
    """Create the segment, or update who we are; True when this process is observed."""
    compiling.look_for_torch()
    with _lock:
        try:
            if recorder.current is not None:
                recorder.current.update_identity(identity.checked(known))
            elif not _refused:
                _create(directory or default_directory(), identity.checked(known))
        except Exception as error:  # noqa: BLE001 (never into the job)
            _refuse(str(error) or type(error).__name__)
        return recorder.current is not None


def begin(directory: str, known: dict[str, Any]) -> None:
    """``start`` for a guest that came by attach: what goes wrong is raised, not printed."""
    compiling.look_for_torch()
    with _lock:
        if recorder.current is None:
            _create(directory, identity.checked(known))


def withdraw(gone: Callable[[], None]) -> None:
    """Close the segment and leave the interpreter as it was, while the job goes on.

    Called in a thread of the guest; ``gone`` is called when the last hook is out, maybe later and
    by the thread that trains.
    """
    with _lock:
        recorder.start_late = None
        writer, recorder.current = recorder.current, None
        imports.forget()
        if _at_exit is not None:
            _at_exit.detach()
        if _finalizer is not None:
            _finalizer.cancel()
    if writer is not None:
        writer.finish()
        writer.retire()
    hooks = sys.modules.get("dfx_agent.shim.torch.hooks")
    if hooks is None:
        patches.restore_all()
        gone()
    else:
        hooks.withdraw(gone)


def stop() -> None:
    """Close the segment in an orderly way and stay off."""
    with _lock:
        recorder.start_late = None
        imports.forget()
        hooks = sys.modules.get("dfx_agent.shim.torch.hooks")
        if hooks is not None:
            hooks.remove()
        else:
            patches.restore_all()  # adapters work without torch too
        writer, recorder.current = recorder.current, None
        if writer is not None and writer.pid == os.getpid():
            writer.finish()


def _start_late() -> recorder.Recorder | None:
    start(None)
    return recorder.current


def _create(directory: str, given: dict[str, Any]) -> None:
    who = _inherited or identity.from_environment()
    recorder.current = recorder.Recorder(directory, replace(who, **given))
    _install_hooks()
    imports.when_imported("torch", _install_torch_hooks)
    adapters.install()
    adapters.report(recorder.current)
    clients.install()


def _install_torch_hooks() -> None:
    from dfx_agent.shim.torch import hooks  # noqa: PLC0415 (only a process with torch pays for it)

    hooks.install()


def _refuse(reason: str) -> None:
    """Say once what is not done as asked; the job goes on."""
    global _refused  # noqa: PLW0603 (one process, one answer)
    outcome = ""
    if recorder.current is None:
        _refused = True
        recorder.start_late = None
        outcome = " (this process runs unobserved)"
    line = " ".join(f"dfx-agent: {reason}{outcome}".split())
    print(line, file=sys.stderr)


class _Process:
    """What ``weakref.finalize`` watches: it is there until the interpreter ends."""


_process = _Process()


def _install_hooks() -> None:
    global _at_exit  # noqa: PLW0603 (one process)
    residue.follow_forks(__name__, _after_fork.__name__)
    if _at_exit is None or not _at_exit.alive:
        # and not atexit: that keeps a place for ever, also for what was unregistered
        _at_exit = weakref.finalize(_process, stop)
    _finish_with_multiprocessing()


def _finish_with_multiprocessing() -> None:
    """A forked multiprocessing child leaves by os._exit: only its own finalizers run."""
    global _finalizer  # noqa: PLW0603
    multiprocessing = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if multiprocessing and util and multiprocessing.parent_process() is not None:
        _finalizer = util.Finalize(None, stop, exitpriority=0)


def _after_fork() -> None:
    """The child gets a segment of its own, at its first record; the parent's is left alone."""
    global _inherited, _lock  # noqa: PLW0603 (state of the parent that the child inherits)
    _lock = threading.RLock()
    writer, recorder.current = recorder.current, None
    if writer is None:
        return
    hooks = sys.modules.get("dfx_agent.shim.torch.hooks")
    if hooks is not None:
        hooks.after_fork()
    attached = sys.modules.get("dfx_agent.shim.attached")
    if attached is not None and attached.forget():
        if hooks is not None:
            hooks.remove()
        writer.release()  # nobody would take it out of this child again
        return
    _inherited = replace(writer.identity, role=f"{writer.identity.role}_child"[:32])
    recorder.start_late = _start_late
    writer.release()
