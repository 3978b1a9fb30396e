"""Reads data about a process from ``/proc``, as far as the agent's rights allow.

``status`` and ``start_ticks`` are readable by everybody. ``mappings``, ``executable``,
``current_syscall`` and ``TargetMemory`` need the same rights as ptrace. Every function raises
OSError if the process has exited or may not be read.
"""

from __future__ import annotations

import errno
import os
import struct
from types import TracebackType
from typing import NamedTuple

_DELETED = " (deleted)"
_PF_KTHREAD = 0x200000


class Status(NamedTuple):
    """The fields of ``/proc/PID/status`` that decide about attaching."""

    name: str
    state: str
    tracer_pid: int
    uids: tuple[int, ...]
    """Real, effective, saved, file system."""
    gids: tuple[int, ...]
    """Real, effective, saved, file system."""
    permitted_capabilities: int
    """Bit mask."""
    effective_capabilities: int
    """Bit mask."""
    seccomp: int
    """0 off, 1 strict, 2 filter."""
    has_shadow_stack: bool
    """False on kernels that do not report it."""


class Mapping(NamedTuple):
    """One line of ``/proc/PID/maps``; ``path`` is empty for anonymous memory."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str


class Syscall(NamedTuple):
    """The system call in which a thread is blocked, and the thread's stack pointer."""

    number: int
    arguments: tuple[int, ...]
    stack_pointer: int


def status(pid: int) -> Status:
    """Read ``/proc/PID/status``."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
        fields = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return Status(
        name=fields["Name"],
        state=fields["State"][:1],
        tracer_pid=int(fields["TracerPid"]),
        uids=tuple(map(int, fields["Uid"].split())),
        gids=tuple(map(int, fields["Gid"].split())),
        permitted_capabilities=int(fields["CapPrm"], 16),
        effective_capabilities=int(fields["CapEff"], 16),
        seccomp=int(fields.get("Seccomp", "0")),
        has_shadow_stack="shstk" in fields.get("x86_Thread_features", ""),
    )


def start_ticks(pid: int) -> int:
    """Start of the process in clock ticks since boot; with the pid it identifies the process."""
    return int(_stat(pid)[19])


def is_kernel_thread(pid: int) -> bool:
    return bool(int(_stat(pid)[6]) & _PF_KTHREAD)


def _stat(pid: int) -> list[bytes]:
    """Fields of ``/proc/PID/stat`` after the name, which may contain any characters."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()


def executable(pid: int) -> str:
    """Path of the program in its own mount namespace."""
    return os.readlink(f"/proc/{pid}/exe").removesuffix(_DELETED)


def mappings(pid: int) -> list[Mapping]:
    """All mappings in ascending order; empty for a zombie or a kernel thread."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
        return [_mapping(line) for line in lines]


def is_executable(pid: int, start: int) -> bool:
    """Whether the mapping at ``start`` is executable; cheaper than reading all ``mappings``."""
    begin = f"{start:08x}-".encode()
    with open(f"/proc/{pid}/maps", "rb") as lines:
        return any(b"x" in line.split(None, 2)[1] for line in lines if line.startswith(begin))


def _mapping(line: str) -> Mapping:
    addresses, permissions, offset, _, _, *path = line.rstrip("\n").split(None, 5)
    start, end = addresses.split("-")
    name = path[0].removesuffix(_DELETED) if path else ""
    return Mapping(int(start, 16), int(end, 16), permissions, int(offset, 16), name)


def thread_ids(pid: int) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def current_syscall(pid: int, thread_id: int) -> Syscall | None:
    """The system call of a blocked thread; None if it runs or is stopped outside a call."""
    with open(f"/proc/{pid}/task/{thread_id}/syscall", encoding="ascii") as line:
        number, *words = line.read().split()
    if number in {"running", "-1"}:
        return None
    *arguments, stack_pointer, _ = (int(word, 16) for word in words)
    return Syscall(int(number), tuple(arguments), stack_pointer)


class TargetMemory:
    """The memory of one process, open for reading and writing.

    It stays bound to the program that ran when it was opened. After an exit, an exec or a reuse of
    the pid, every access raises OSError.
    """

    def __init__(self, pid: int) -> None:
        self._descriptor = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> TargetMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def read(self, address: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, address)
        if len(data) != size:
            raise OSError(errno.EIO, f"only {len(data)} of {size} bytes at {address:#x}")
        return data

    def write(self, address: int, data: bytes) -> None:
        if os.pwrite(self._descriptor, data, address) != len(data):
            raise OSError(errno.EIO, f"cannot write {len(data)} bytes at {address:#x}")

    def is_mapped(self, address: int) -> bool:
        try:
            self.read(address, 1)
        except OSError:
            return False
        return True

    def word(self, address: int) -> int:
        """The unsigned 64-bit number at this address."""
        return int.from_bytes(self.read(address, 8), "little")

    def int32(self, address: int) -> int:
        number: int = struct.unpack("<i", self.read(address, 4))[0]
        return number

    def text(self, address: int, limit: int = 256) -> bytes:
        """Bytes up to the terminating zero, at most ``limit``; no read crosses a page."""
        text = b""
        while len(text) < limit:
            begin = address + len(text)
            piece, zero, _ = self.read(begin, min(64, 4096 - begin % 4096)).partition(b"\0")
            text += piece
            if zero:
                break
        return text
