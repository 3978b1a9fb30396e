"""Runs a script in Python 3.14 and newer with the protocol of PEP 768, over ``/proc/PID/mem``.

No thread is stopped and ptrace is not used. The script runs when a thread next returns to its
bytecode: first the main thread is asked, and if it is in C code, all others too.

``sys.remote_exec`` is not used: it needs the same minor version on both sides, and opens the
target's file in the agent's mount namespace. Source: Include/internal/pycore_debug_offsets.h,
Python/ceval_gil.c.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from dfx_agent.attach import refusals
from dfx_agent.attach.guard import guarded
from dfx_agent.attach.target import Target
from dfx_agent.base.errors import AttachError

_OLDEST = (3, 14)
_FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108 (of the target; a new folder is created)
_STOP_BIT = 1 << 5  # _PY_EVAL_PLEASE_STOP_BIT
_MAIN_ONLY_SECONDS, _UNDER_WAY_SECONDS = 0.05, 0.02
_MAX_THREADS = 4096

# Index of a word in _Py_DebugOffsets. One row per minor version: 3.15 has inserted fields.
_INTERPRETERS_HEAD, _INTERPRETER_ID, _NEXT_INTERPRETER = 5, 7, 8
_THREADS_HEAD, _THREADS_MAIN, _NEXT_THREAD = 9, 10, 24
_DEBUGGER_SUPPORT = {14: 89, 15: 105}


class _Offsets(NamedTuple):
    """Offsets in bytes in the interpreter, the thread state, or its debugger support."""

    threads_head: int
    threads_main: int
    next_thread: int
    eval_breaker: int
    debugger_support: int
    remote_debugging_enabled: int
    pending_call: int
    script_path: int
    script_path_size: int


def refusal(target: Target) -> AttachError | None:
    """Why this route does not work for the process; None if it does."""
    runtime = target.runtime
    if runtime.version[:2] < _OLDEST:
        return refusals.no_remote_debugging(runtime.version_text)
    if runtime.version[1] not in _DEBUGGER_SUPPORT:
        return refusals.unknown_remote_debugging(runtime.version_text)
    interpreter, offsets = _interpreter(target)
    if target.memory.int32(interpreter + offsets.remote_debugging_enabled) != 1:
        return refusals.remote_debugging_disabled(target.pid)
    if not any(map(os.path.isdir, _folders(target.pid))):
        return refusals.no_writable_folder(target.pid)
    return None


class Script:
    """A script that waits in the process. Raises AttachError if no folder is writable."""

    def __init__(self, target: Target, source: str) -> None:
        self._pid, self._memory, self._runtime = target.pid, target.memory, target.runtime.address
        self._interpreter, self._offsets = _interpreter(target)
        self._folder, self._path = _write_script(target, source)
        self._armed: list[int] = []
        main = target.memory.word(self._interpreter + self._offsets.threads_main)
        self._arm(main)
        self._all_at = time.monotonic() + _MAIN_ONLY_SECONDS

    def has_begun(self) -> bool:
        """Whether a thread has begun the script. Asks all threads if the main thread is late.

        Raises AttachError if the target has exited.
        """
        if not self._memory.is_mapped(self._runtime):
            raise refusals.gone(self._pid)
        if not os.path.isdir(os.path.join(self._folder, "armed")):
            self._remove()
            return True
        if self._all_at and time.monotonic() > self._all_at:
            self._all_at = 0.0
            for thread in self._threads():
                self._arm(thread)
        return False

    def cancel(self) -> bool:
        """Prevent the script from running; False if it has begun already."""
        try:
            os.rmdir(os.path.join(self._folder, "armed"))
            is_first = True
        except OSError:
            is_first = False
        self._remove()
        return is_first

    def _arm(self, thread: int) -> None:
        at, memory = self._offsets, self._memory
        support = thread + at.debugger_support
        path = self._path.encode() + b"\0"
        if not thread or thread in self._armed or len(path) > at.script_path_size:
            return
        memory.write(support + at.script_path, path)
        memory.write(support + at.pending_call, struct.pack("<i", 1))
        breaker = memory.word(thread + at.eval_breaker)
        memory.write(thread + at.eval_breaker, struct.pack("<Q", breaker | _STOP_BIT))
        self._armed.append(thread)

    def _threads(self) -> Iterator[int]:
        thread = self._memory.word(self._interpreter + self._offsets.threads_head)
        for _ in range(_MAX_THREADS):
            if not thread:
                return
            yield thread
            thread = self._memory.word(thread + self._offsets.next_thread)

    def _remove(self) -> None:
        """Withdraw the request from the other threads; one may just have copied the path."""
        living = set()
        with contextlib.suppress(OSError):
            living = set(self._threads())
        for thread in living.intersection(self._armed):
            pending = thread + self._offsets.debugger_support + self._offsets.pending_call
            with contextlib.suppress(OSError):
                self._memory.write(pending, struct.pack("<i", 0))
        time.sleep(_UNDER_WAY_SECONDS)
        _remove_folder(self._folder)


def _interpreter(target: Target) -> tuple[int, _Offsets]:
    """Address of the main interpreter's state, and the offsets of its members."""
    memory, runtime = target.memory, target.runtime.address
    support = _DEBUGGER_SUPPORT[target.runtime.version[1]]

    def member(word: int) -> int:
        return memory.word(runtime + 8 * word)

    offsets = _Offsets(
        threads_head=member(_THREADS_HEAD),
        threads_main=member(_THREADS_MAIN),
        next_thread=member(_NEXT_THREAD),
        eval_breaker=member(support),
        debugger_support=member(support + 1),
        remote_debugging_enabled=member(support + 2),
        pending_call=member(support + 3),
        script_path=member(support + 4),
        script_path_size=member(support + 5),
    )
    interpreter = memory.word(runtime + member(_INTERPRETERS_HEAD))
    while memory.word(interpreter + member(_INTERPRETER_ID)):  # the main one is 0, and the last
        interpreter = memory.word(interpreter + member(_NEXT_INTERPRETER))
    return interpreter, offsets


def _folders(pid: int) -> list[str]:
    """Folders of the target, as the agent sees them. Links may leave its root: excluded."""
    seen = [f"/proc/{pid}/root{folder}" for folder in _FOLDERS]
    return [folder for folder in seen if not os.path.islink(folder)]


def _write_script(target: Target, source: str) -> tuple[str, str]:
    """Write the script; return its folder as the agent sees it, and its path in the target."""
    root = f"/proc/{target.pid}/root"
    for parent in _folders(target.pid):
        folder = os.path.join(parent, f"dfx-agent-{os.urandom(8).hex()}")
        try:
            os.mkdir(folder, 0o700)
        except OSError:
            continue
        seen = folder.removeprefix(root)
        path = os.path.join(folder, "payload.py")
        armed = os.path.join(folder, "armed")
        with open(path, "x", encoding="ascii") as script:
            script.write(guarded(source, folder=seen))
        os.mkdir(armed, 0o700)
        for made in (path, armed, folder):
            os.chown(made, target.status.uids[1], target.status.gids[1], follow_symlinks=False)
        return folder, os.path.join(seen, "payload.py")
    raise refusals.no_writable_folder(target.pid)


def _remove_folder(folder: str) -> None:
    """Remove the files that the payload has not removed itself."""
    with contextlib.suppress(OSError):
        os.rmdir(os.path.join(folder, "armed"))
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, "payload.py"))
    with contextlib.suppress(OSError):
        os.rmdir(folder)
