"""Make one thread of another process call one function and go on as if nothing had happened.

The "sigreturn hijack": stop the thread, put a signal frame of our own under its stack with the
return address on the kernel's sigreturn, point it at the function, and detach at once. The function
runs untraced and the kernel restores every register, the signal mask and the interrupted system
call. No code is overwritten and nothing waits for us: if we are killed at any moment, the thread
goes on.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from dfx_agent.attach import machine_aarch64, machine_x86_64, procfs, ptrace, refusals
from dfx_agent.attach.procfs import Mapping, Memory
from dfx_agent.base.errors import AttachError

STOP_SECONDS = 0.5
_RETRIES, _PAUSE_SECONDS = 50, 0.002
_STACK_NEEDED, _MAIN_STACK_NEEDED = 64 * 1024, 16 * 1024  # the kernel grows the main thread's
_MAX_THREADS_LOOKED_AT = 512
_FUTEX_COMMAND, _FUTEX_WAIT_BITSET = 0x7F, 9
_LOWEST_ADDRESS, _SPACE_AROUND = 1 << 32, 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")
# Faults must stay visible; 32 and 33 are glibc's own, and a thread that blocks 33 for ever would
# block setuid() of the whole process.
_UNBLOCKED = (4, 5, 7, 8, 11, 31, 32, 33)
_BLOCKED_MASK = (2**64 - 1 - sum(1 << (number - 1) for number in _UNBLOCKED)).to_bytes(8, "little")


class Stopped(Protocol):
    """The registers of a stopped thread; see machine_x86_64.Stopped."""

    def syscall(self, memory: Memory) -> tuple[int, int] | None: ...
    def call(self, memory: Memory, function: int, arguments: list[int], sigreturn: int) -> None: ...


class StoppedFactory(Protocol):
    """Reads the registers of a thread that is stopped now."""

    def __call__(self, thread_id: int) -> Stopped: ...


class Machine(Protocol):
    """One processor: what machine_x86_64 and machine_aarch64 hold."""

    @property
    def name(self) -> str: ...
    @property
    def address_limit(self) -> int: ...
    @property
    def idle_syscalls(self) -> dict[int, str]: ...
    @property
    def sigreturn_code(self) -> bytes: ...
    @property
    def sigreturn_is_in_vdso(self) -> bool: ...
    @property
    def stub(self) -> bytes: ...
    @property
    def Stopped(self) -> StoppedFactory: ...  # noqa: N802 (a class)


_MACHINES: dict[str, Machine] = {"x86_64": machine_x86_64, "aarch64": machine_aarch64}


def own_machine() -> Machine | None:
    """The processor we run on; None where no injection was written for it."""
    return _MACHINES.get(os.uname().machine)


class IdleThread(NamedTuple):
    """A thread blocked where it can own no lock of malloc or of the loader; best sort first."""

    rank: int
    thread_id: int
    syscall: tuple[int, int]


def idle_threads(pid: int, maps: Sequence[Mapping], machine: Machine) -> list[IdleThread]:
    """OSError when the process may not be read; a thread that ends meanwhile is left out."""
    found = []
    for thread_id in procfs.thread_ids(pid)[:_MAX_THREADS_LOOKED_AT]:
        try:
            call = procfs.current_syscall(pid, thread_id)
        except (FileNotFoundError, ProcessLookupError):
            continue
        name = call and machine.idle_syscalls.get(call.number)
        if call and name and _owns_no_lock(pid, name, call) and _has_stack(call, maps):
            rank = list(machine.idle_syscalls).index(call.number)
            found.append(IdleThread(rank, thread_id, (call.number, call.arguments[1])))
    return sorted(found)


def _owns_no_lock(pid: int, name: str, call: procfs.Syscall) -> bool:
    """Low-level locks wait with plain FUTEX_WAIT, and the loader reads files under its lock."""
    if name == "futex":
        return call.arguments[1] & _FUTEX_COMMAND == _FUTEX_WAIT_BITSET
    if name == "read":
        opened = os.readlink(f"/proc/{pid}/fd/{call.arguments[0]}")
        return opened.startswith(("socket:", "pipe:", "anon_inode:[eventfd]"))
    return True


def _has_stack(call: procfs.Syscall, maps: Sequence[Mapping]) -> bool:
    for mapping in maps:
        if mapping.start <= call.stack_pointer < mapping.end:
            needed = _MAIN_STACK_NEEDED if mapping.path == "[stack]" else _STACK_NEEDED
            return call.stack_pointer - mapping.start >= needed
    return False


class Hijacker:
    """Calls functions in threads of one process. Use it in a short-lived process only.

    ``stops`` holds, for each call, the seconds its thread stood still.
    """

    def __init__(self, pid: int, memory: Memory, maps: Sequence[Mapping], machine: Machine) -> None:
        self._pid, self._memory, self._maps, self._machine = pid, memory, maps, machine
        self._sigreturn = find_sigreturn(memory, maps, machine)
        self.stops: list[float] = []

    def call(
        self,
        function: int,
        arguments: Iterable[int],
        *,
        only_idle: bool = False,
        only_main: bool = False,
    ) -> None:
        """Let a thread call ``function``; it may still run when this returns.

        ``only_idle`` refuses any thread that is not blocked in a harmless system call, else the
        main thread is taken where it is; ``only_main`` takes no other. AttachError, with nothing
        changed, when no thread can be had.
        """
        last = refusals.no_idle_thread()
        for _ in range(_RETRIES):
            try:
                idle = None if only_main else self._idle_thread()
                if idle is None and only_idle:
                    raise refusals.no_idle_thread()
                self._try(function, list(arguments), idle)
            except AttachError as error:
                if error.code != "notparked":
                    raise
                last = error
            except ProcessLookupError:
                last = refusals.left_its_call(self._pid)
            else:
                return
            if not os.path.exists(f"/proc/{self._pid}"):
                raise refusals.gone(self._pid)
            time.sleep(_PAUSE_SECONDS)
        raise last

    def _idle_thread(self) -> IdleThread | None:
        return next(iter(idle_threads(self._pid, self._maps, self._machine)), None)

    def _try(self, function: int, arguments: list[int], idle: IdleThread | None) -> None:
        thread_id = self._pid if idle is None else idle.thread_id
        with _without_waiting_for_a_processor():
            ptrace.stop(thread_id, STOP_SECONDS)
            begin = time.perf_counter()
            try:
                stopped = self._machine.Stopped(thread_id)
                if idle is not None and stopped.syscall(self._memory) != idle.syscall:
                    raise refusals.left_its_call(thread_id)
                stopped.call(self._memory, function, arguments, self._sigreturn)
                ptrace.set_signal_mask(thread_id, _BLOCKED_MASK)
            finally:
                ptrace.detach(thread_id)
                self.stops.append(time.perf_counter() - begin)


@contextlib.contextmanager
def _without_waiting_for_a_processor() -> Iterator[None]:
    """Where we may: on a busy machine a stop lasts as long as we are not scheduled."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def find_sigreturn(memory: Memory, maps: Sequence[Mapping], machine: Machine) -> int:
    """Address of the code that every signal handler returns to. LookupError if there is none."""
    for mapping in maps:
        name = os.path.basename(mapping.path)
        if machine.sigreturn_is_in_vdso:
            is_wanted = name == "[vdso]"
        else:
            is_wanted = name.startswith(("libc.so", "libc-2."))
        if is_wanted and "x" in mapping.permissions:
            code = memory.read(mapping.start, mapping.end - mapping.start)
            found = code.find(machine.sigreturn_code)
            if found >= 0:
                return mapping.start + found
    raise LookupError("sigreturn trampoline")


def free_range(pid: int, maps: Sequence[Mapping], size: int, machine: Machine) -> int:
    """A page in the middle half of the largest gap; by chance, so that two agents do not meet."""
    gap, gap_start, previous_end = 0, 0, _LOWEST_ADDRESS
    for mapping in maps:
        if mapping.end <= machine.address_limit and mapping.start - previous_end > gap:
            gap, gap_start = mapping.start - previous_end, previous_end
        previous_end = max(previous_end, mapping.end)
    if gap < size + _SPACE_AROUND:
        raise refusals.no_space(pid)
    chance = int.from_bytes(os.urandom(8), "little")
    address = gap_start + gap // 4 + chance % (gap // 2 - size)
    return address // PAGE * PAGE
