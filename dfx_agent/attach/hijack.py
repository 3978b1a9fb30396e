"""Makes one thread of another process call one function and then continue where it was.

The "sigreturn hijack": stop the thread, write a signal frame below its stack with the kernel's
sigreturn as return address, set the instruction pointer to the function, and detach at once. The
function runs untraced. The kernel then restores every register, the signal mask and the interrupted
system call. No code is overwritten and nothing waits for this process: if it is killed at any
moment, the thread continues.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from dfx_agent.attach import machine_aarch64, machine_x86_64, procfs, ptrace, refusals
from dfx_agent.attach.procfs import Mapping, TargetMemory
from dfx_agent.base.errors import AttachError

STOP_SECONDS = 0.5
_RETRIES, _PAUSE_SECONDS = 50, 0.002
_STACK_NEEDED, _MAIN_STACK_NEEDED = 64 * 1024, 16 * 1024  # the kernel grows the main thread's
_MAX_THREADS_LOOKED_AT = 512
_FUTEX_COMMAND, _FUTEX_WAIT_BITSET = 0x7F, 9
_LOWEST_ADDRESS, _SPACE_AROUND = 1 << 32, 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")
# Faults must stay visible. 32 and 33 are glibc's own: a thread that blocks 33 forever would block
# setuid() of the process.
_UNBLOCKED = (4, 5, 7, 8, 11, 31, 32, 33)
_BLOCKED_MASK = (2**64 - 1 - sum(1 << (number - 1) for number in _UNBLOCKED)).to_bytes(8, "little")


class StoppedThread(Protocol):
    """A stopped thread and its registers, see machine_x86_64.X86Thread."""

    def syscall(self, memory: TargetMemory) -> tuple[int, int] | None: ...
    def call(
        self, memory: TargetMemory, function: int, arguments: list[int], sigreturn: int
    ) -> None: ...


class StoppedThreadFactory(Protocol):
    """Reads the registers of a thread that is stopped now."""

    def __call__(self, thread_id: int) -> StoppedThread: ...


class Machine(Protocol):
    """One processor: the contents of machine_x86_64 or machine_aarch64."""

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
    def stopped_thread(self) -> StoppedThreadFactory: ...


_MACHINES: dict[str, Machine] = {"x86_64": machine_x86_64, "aarch64": machine_aarch64}


def own_machine() -> Machine | None:
    """The processor of this machine; None if injection is not implemented for it."""
    return _MACHINES.get(os.uname().machine)


class IdleThread(NamedTuple):
    """A thread that is blocked where it owns no lock of malloc or the loader; best ones first."""

    rank: int
    thread_id: int
    syscall: tuple[int, int]


def idle_threads(pid: int, maps: Sequence[Mapping], machine: Machine) -> list[IdleThread]:
    """Idle threads of a process. Raises OSError if it may not be read; skips ended threads."""
    threads = []
    for thread_id in procfs.thread_ids(pid)[:_MAX_THREADS_LOOKED_AT]:
        try:
            call = procfs.current_syscall(pid, thread_id)
        except (FileNotFoundError, ProcessLookupError):
            continue
        name = call and machine.idle_syscalls.get(call.number)
        if call and name and _owns_no_lock(pid, name, call) and _has_stack(call, maps):
            rank = list(machine.idle_syscalls).index(call.number)
            threads.append(IdleThread(rank, thread_id, (call.number, call.arguments[1])))
    return sorted(threads)


def _owns_no_lock(pid: int, name: str, call: procfs.Syscall) -> bool:
    """Exclude plain FUTEX_WAIT, used by low-level locks, and file reads under the loader's lock."""
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
    """Calls functions in threads of one process. Use it only in a short-lived process.

    ``stops`` contains, for each call, the seconds for which its thread was stopped.
    """

    def __init__(
        self, pid: int, memory: TargetMemory, maps: Sequence[Mapping], machine: Machine
    ) -> None:
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
        """Make a thread call ``function``, which may still run when this method returns.

        By default an idle thread is used, else the main thread wherever it is. ``only_idle``
        accepts only a thread that is blocked in a harmless system call, ``only_main`` only the main
        thread. Raises AttachError, with nothing changed, if no thread is available.
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
        with _realtime_priority():
            ptrace.stop(thread_id, STOP_SECONDS)
            begin = time.perf_counter()
            try:
                stopped = self._machine.stopped_thread(thread_id)
                if idle is not None and stopped.syscall(self._memory) != idle.syscall:
                    raise refusals.left_its_call(thread_id)
                stopped.call(self._memory, function, arguments, self._sigreturn)
                ptrace.set_signal_mask(thread_id, _BLOCKED_MASK)
            finally:
                ptrace.detach(thread_id)
                self.stops.append(time.perf_counter() - begin)


@contextlib.contextmanager
def _realtime_priority() -> Iterator[None]:
    """Use realtime priority if permitted, so that a stop is short even on a busy machine."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def find_sigreturn(memory: TargetMemory, maps: Sequence[Mapping], machine: Machine) -> int:
    """Address of the code that signal handlers return to. Raises LookupError if there is none."""
    for mapping in maps:
        name = os.path.basename(mapping.path)
        if machine.sigreturn_is_in_vdso:
            is_wanted = name == "[vdso]"
        else:
            is_wanted = name.startswith(("libc.so", "libc-2."))
        if is_wanted and "x" in mapping.permissions:
            code = memory.read(mapping.start, mapping.end - mapping.start)
            offset = code.find(machine.sigreturn_code)
            if offset >= 0:
                return mapping.start + offset
    raise LookupError("sigreturn trampoline")


def free_range(pid: int, maps: Sequence[Mapping], size: int, machine: Machine) -> int:
    """A random page in the middle half of the largest gap: two agents use different pages."""
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
