"""Anonymous host memory of a process, and a robust estimate of its growth per step.

A leak grows anonymous pages. Resident memory also counts file pages, which the kernel adds and
drops at will.
"""

from __future__ import annotations

import mmap
import os
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_ANONYMOUS, _RESIDENT, _VIRTUAL = "\nRssAnon:", "\nVmRSS:", "\nVmSize:"
_ARENA_ALIGNMENT = 64 * 2**20  # glibc's HEAP_MAX_SIZE
_PIECE_BYTES, _MOST_PIECES = 2 * 2**20, 512
_ENTRY_BYTES = 8  # of /proc/PID/pagemap; the highest bit of the last byte: page is present
_IS_PRESENT = bytes(byte >> 7 for byte in range(256))
_BYTES_PER_KB = 1024
_KEEP_STEPS = 64
_STRIDES = 2, 4, 8
_MIN_STEPS = 8


class ProcessBytes(NamedTuple):
    """Memory of a process; None if the kernel does not report the value."""

    anonymous: int | None = None
    resident: int | None = None  # including file pages
    virtual: int | None = None  # all mapped memory


def process_bytes(pid: int) -> ProcessBytes:
    """All None if the process is gone or not readable."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
            return parse_status(status.read().decode("utf-8", "replace"))
    except OSError:
        return ProcessBytes()


def parse_status(status: str) -> ProcessBytes:
    """Parse the text of ``/proc/PID/status``; a zombie has none of the values."""
    return ProcessBytes(*(_of_status(status, f) for f in (_ANONYMOUS, _RESIDENT, _VIRTUAL)))


def _of_status(status: str, field: str) -> int | None:
    _, found, rest = status.partition(field)
    return int(rest.split(None, 1)[0]) * _BYTES_PER_KB if found else None


def glibc_arena_bytes(pid: int) -> int | None:
    """Resident bytes of the arenas of glibc's malloc; None if the mappings are not readable.

    Of arenas over 1 GiB in total only 512 evenly spread pieces of 2 MiB are read.
    """
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            arenas = parse_arenas(maps)
        with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
            return _resident_bytes(pagemap.fileno(), arenas)
    except OSError:
        return None


def parse_arenas(lines: Iterable[str]) -> list[tuple[int, int]]:
    """Begin and end of each arena listed in ``/proc/PID/maps``.

    The main arena is the heap; every other arena begins at a multiple of 64 MiB.
    """
    found = []
    for line in lines:
        addresses, permissions, _, _, inode, *name = line.split()
        begin, end = (int(address, 16) for address in addresses.split("-"))
        is_arena = name == ["[heap]"] or (
            not name and inode == "0" and begin % _ARENA_ALIGNMENT == 0
        )
        if is_arena and permissions.startswith("rw"):
            found.append((begin, end))
    return found


def _resident_bytes(pagemap: int, areas: Sequence[tuple[int, int]]) -> int:
    """Count present pages, in pieces of 2 MiB, because the kernel blocks the process meanwhile."""
    pieces = [
        (at, min(at + _PIECE_BYTES, end))
        for begin, end in areas
        for at in range(begin, end, _PIECE_BYTES)
    ]
    num_pages = num_present = 0
    for begin, end in pieces[:: 1 + len(pieces) // _MOST_PIECES]:
        first, last = begin // mmap.PAGESIZE, end // mmap.PAGESIZE
        entries = os.pread(pagemap, (last - first) * _ENTRY_BYTES, first * _ENTRY_BYTES)
        num_pages += last - first
        num_present += entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(_IS_PRESENT).count(1)
    total = sum(end - begin for begin, end in areas)
    return round(total * num_present / num_pages) if num_pages else 0


def num_host_oom_kills() -> int | None:
    """Processes that the OOM killer has killed since the boot; None before Linux 4.13."""
    return _host_counts("/proc/vmstat").get("oom_kill")


def num_major_faults() -> int | None:
    """Pages that all processes had to read from disk since the boot."""
    return _host_counts("/proc/vmstat").get("pgmajfault")


def available_bytes() -> int | None:
    """Memory that the host can still allocate without swapping; None if not reported."""
    return _host_counts("/proc/meminfo").get("MemAvailable")


def total_bytes() -> int | None:
    return _host_counts("/proc/meminfo").get("MemTotal")


def _host_counts(path: str) -> dict[str, int]:
    try:
        with open(path, "rb") as file:
            return parse_host_counts(file.read().decode("ascii", "replace"))
    except OSError:
        return {}


def parse_host_counts(text: str) -> dict[str, int]:
    """Names and numbers of ``/proc/vmstat`` or ``/proc/meminfo``; kB are converted to bytes."""
    rows = (line.split() for line in text.splitlines())
    return {
        row[0].rstrip(":"): int(row[1]) * (_BYTES_PER_KB if row[2:] == ["kB"] else 1)
        for row in rows
        if len(row) >= 2 and row[1].isdecimal()
    }


class MemoryTrend:
    """Growth over the latest 64 steps: the median slope over all pairs of steps (Theil-Sen).

    A single unusual step, such as a checkpoint or a validation, does not change it. Call ``add``
    when a step ends. The slope is computed when it is read, at most once per step.
    """

    def __init__(self) -> None:
        self.samples: deque[tuple[int, float]] = deque(maxlen=_KEEP_STEPS)  # (step, bytes)
        # the same for every second, fourth and eighth step
        self.sparse_samples: dict[int, deque[tuple[int, float]]] = {
            stride: deque(maxlen=_KEEP_STEPS) for stride in _STRIDES
        }
        self._num_added = 0
        self._slope: float | None = None
        self._is_stale = False

    def add(self, step: int, num_bytes: float) -> None:
        """Add a step. A step seen before clears the trend, because the job was restarted."""
        if self.samples and step <= self.samples[-1][0]:
            self.samples.clear()
            for sparse in self.sparse_samples.values():
                sparse.clear()
        self.samples.append((step, num_bytes))
        for stride, sparse in self.sparse_samples.items():
            if self._num_added % stride == 0:
                sparse.append((step, num_bytes))
        self._num_added += 1
        self._is_stale = True

    def slope_bytes_per_step(self) -> float | None:
        """None with fewer than 8 steps."""
        if self._is_stale:
            self._is_stale = False
            self._slope = _theil_sen(self.samples) if len(self.samples) >= _MIN_STEPS else None
        return self._slope


def _theil_sen(samples: deque[tuple[int, float]]) -> float:
    points = list(samples)
    return statistics.median(
        (later - earlier) / (after - before)
        for index, (before, earlier) in enumerate(points)
        for after, later in points[index + 1 :]
    )
