"""Runs Python text in a new thread of another process, or in its main thread as a pending call.

There are three hijacks: map memory in the target; make its first page executable (the stub); start
a thread in the stub, or queue it with Py_AddPendingCall. The stub acquires the GIL, runs the text
unless it was cancelled meanwhile, and unmaps itself.

If memory may not become executable, the pending call is PyRun_SimpleString itself. The guard around
the text then does the rest, and the mapping stays.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence

from dfx_agent.attach import refusals
from dfx_agent.attach.elf import Image
from dfx_agent.attach.guard import guarded
from dfx_agent.attach.hijack import PAGE, Hijacker, Machine, free_range
from dfx_agent.attach.procfs import Mapping, TargetMemory, is_executable

FUNCTIONS = (
    "PyGILState_Ensure",
    "PyRun_SimpleString",
    "PyGILState_Release",
    "Py_IsInitialized",
    "Py_AddPendingCall",
)
LIBC_FUNCTIONS = ("mmap", "mprotect", "munmap", "pthread_create", "pthread_self", "pthread_detach")

# The table that the stub reads, in words: 0-2 PyGILState_Ensure, PyRun_SimpleString,
# PyGILState_Release; 3 text; 4 Py_IsInitialized; 5 pthread_self; 6 pthread_detach; 7-9 munmap, its
# address and size; 10 state; 11 cancelled; 12 the new thread.
_STATE_AT, _CANCELLED_AT, _THREAD_AT, _TEXT_AT = 80, 88, 96, 256
_QUEUED, _BEGUN, _UNINITIALIZED = 0, 1, 2
_READ_WRITE, _READ_EXECUTE = 3, 5
_PRIVATE_ANONYMOUS_FIXED_NOREPLACE = 0x2 | 0x20 | 0x100000
_STEP_SECONDS, _EXECUTABLE_SECONDS, _POLL_SECONDS = 2.0, 0.5, 0.0002


def symbols(images: Sequence[Image], names: Sequence[str]) -> dict[str, int]:
    """Name -> address. Raises LookupError with the first function that no image defines."""
    addresses = {}
    for name in names:
        address = next((a for image in images if (a := image.symbol(name))), None)
        if address is None:
            raise LookupError(name)
        addresses[name] = address
    return addresses


class Queued:
    """A text that waits in the target for the GIL."""

    def __init__(self, pid: int, memory: TargetMemory, table: int, code: int) -> None:
        self._pid, self._memory, self._table = pid, memory, table
        self._code = code  # mapped as long as the program runs

    def has_begun(self) -> bool:
        """Whether the text has begun; a stub that has finished has unmapped itself.

        Raises AttachError if the target has exited, or Python was finalized.
        """
        state = self._state()
        if state != _QUEUED and not self._memory.is_mapped(self._code):
            raise refusals.gone(self._pid)
        if state == _UNINITIALIZED:
            raise refusals.starting(self._pid)
        return state != _QUEUED

    def cancel(self) -> bool:
        """Prevent the text from running; False if it has begun already."""
        try:
            self._memory.write(self._table + _CANCELLED_AT, struct.pack("<Q", 1))
        except OSError:
            return False
        return self._state() == _QUEUED

    def _state(self) -> int:
        try:
            return self._memory.word(self._table + _STATE_AT)
        except OSError:
            return _BEGUN


class Injection:
    """Injects one text into one process, step by step."""

    def __init__(
        self,
        pid: int,
        memory: TargetMemory,
        hijacker: Hijacker,
        images: Sequence[Image],
        machine: Machine,
    ) -> None:
        self._pid, self._memory, self._hijacker = pid, memory, hijacker
        self._machine = machine
        self._at = symbols(images, (*FUNCTIONS, *LIBC_FUNCTIONS))

    def queue(self, source: str, maps: Sequence[Mapping], *, as_thread: bool) -> Queued:
        """Queue the text. Raises AttachError if a step fails; at most an unused mapping stays."""
        room = len(guarded(source, report_at=(2**64 - 1, 2**64 - 1))) + 1
        size = PAGE + -(-(_TEXT_AT + room) // PAGE) * PAGE
        base = free_range(self._pid, maps, size, self._machine)
        arguments = (base, size, _READ_WRITE, _PRIVATE_ANONYMOUS_FIXED_NOREPLACE, -1, 0)
        self._call("mmap", arguments, only_idle=as_thread)
        self._until(lambda: self._memory.is_mapped(base), "mmap")
        table = base + PAGE
        self._memory.write(table, self._table(base, size, as_thread=as_thread))
        self._memory.write(base, self._machine.stub)
        self._call("mprotect", (base, PAGE, _READ_EXECUTE), only_idle=as_thread)
        has_stub = self._becomes_executable(base)
        report_at = None if has_stub else (table + _STATE_AT, table + _CANCELLED_AT)
        text = guarded(source, report_at=report_at)
        self._memory.write(table + _TEXT_AT, text.encode() + b"\0")
        if as_thread:
            self._start_thread(base, table, has_stub=has_stub)
        else:
            run = self._at["PyRun_SimpleString"]
            call = (base, table) if has_stub else (run, table + _TEXT_AT)
            # Python 3.12 and older wakes the main thread only if it is the one that calls.
            self._hijacker.call(self._at["Py_AddPendingCall"], call, only_main=True)
        return Queued(self._pid, self._memory, table, self._at["PyRun_SimpleString"])

    def _table(self, base: int, size: int, *, as_thread: bool) -> bytes:
        at = self._at
        # A pending call runs in the main thread, which must not be detached.
        detach = at["pthread_detach" if as_thread else "pthread_self"]
        return struct.pack(
            "<10Q",
            at["PyGILState_Ensure"],
            at["PyRun_SimpleString"],
            at["PyGILState_Release"],
            base + PAGE + _TEXT_AT,
            at["Py_IsInitialized"],
            at["pthread_self"],
            detach,
            at["munmap"],
            base,
            size,
        )

    def _start_thread(self, base: int, table: int, *, has_stub: bool) -> None:
        if not has_stub:
            raise refusals.no_executable_memory(self._pid)
        self._call("pthread_create", (table + _THREAD_AT, 0, base, table), only_idle=True)
        self._until(lambda: self._has_thread(table), "the start of a thread")

    def _call(self, name: str, arguments: Sequence[int], *, only_idle: bool) -> None:
        self._hijacker.call(self._at[name], arguments, only_idle=only_idle)

    def _has_thread(self, table: int) -> bool:
        try:
            return self._memory.word(table + _THREAD_AT) != 0
        except OSError:  # the stub has finished and unmapped itself
            return True

    def _becomes_executable(self, base: int) -> bool:
        deadline = time.monotonic() + _EXECUTABLE_SECONDS
        while time.monotonic() < deadline:
            if is_executable(self._pid, base):
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _STEP_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise refusals.did_not_happen(self._pid, what, _STEP_SECONDS)
            time.sleep(_POLL_SECONDS)
