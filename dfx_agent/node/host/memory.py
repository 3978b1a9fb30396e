"""Anonymous host memory of a process, and its robust growth per step.

Anonymous pages are what a leak grows: resident memory as a whole also counts file pages, which the
kernel takes and gives back as it likes.
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
_ENTRY_BYTES = 8  # of /proc/PID/pagemap; the topmost bit of the last one: present
_IS_PRESENT = bytes(byte >> 7 for byte in range(256))
_BYTES_PER_KB = 1024
_KEEP_STEPS = 64
_STRIDES = 2, 4, 8
_MIN_STEPS = 8


class ProcessBytes(NamedTuple):
    """What a process has; None is what the kernel does not tell."""

    anonymous: int | None = None
    resident: int | None = None  # with pages of files
    virtual: int | None = None  # all that is mapped


def process_bytes(pid: int) -> ProcessBytes:
    """Nothing is known when the process is gone or may not be read."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
            return parse_status(status.read().decode("utf-8", "replace"))
    except OSError:
        return ProcessBytes()


def parse_status(status: str) -> ProcessBytes:
    """Of the text of ``/proc/PID/status``; a zombie's has none of them."""
    return ProcessBytes(*(_of_status(status, f) for f in (_ANONYMOUS, _RESIDENT, _VIRTUAL)))


def _of_status(status: str, field: str) -> int | None:
    _, found, rest = status.partition(field)
    return int(rest.split(None, 1)[0]) * _BYTES_PER_KB if found else None


def glibc_arena_bytes(pid: int) -> int | None:
    """Resident bytes of the arenas of glibc's malloc; None where the mappings may not be read.

    Of arenas of more than 1 GiB in all, 512 pieces of 2 MiB are looked at, evenly spread.
    """
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            arenas = parse_arenas(maps)
        with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
            return _resident_bytes(pagemap.fileno(), arenas)
    except OSError:
        return None


def parse_arenas(lines: Iterable[str]) -> list[tuple[int, int]]:
    """Begin and end of each, of ``/proc/PID/maps``.

    The main arena is the heap; each other one begins at a multiple of 64 MiB.
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
    """The kernel says it page by page, and holds the process up for 2 MiB at a time at most."""
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
    """Processes that the OOM killer has ended since the boot; None before Linux 4.13."""
    return _host_counts("/proc/vmstat").get("oom_kill")


def num_major_faults() -> int | None:
    """Pages that had to be read from a disk since the boot, of all processes."""
    return _host_counts("/proc/vmstat").get("pgmajfault")


def available_bytes() -> int | None:
    """What the host could still give out without swapping; None where it does not say."""
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
    """Names and numbers of ``/proc/vmstat`` or ``/proc/meminfo``, the latter's in bytes."""
    rows = (line.split() for line in text.splitlines())
    return {
        row[0].rstrip(":"): int(row[1]) * (_BYTES_PER_KB if row[2:] == ["kB"] else 1)
        for row in rows
        if len(row) >= 2 and row[1].isdecimal()
    }


class MemoryTrend:
    """Growth over the newest 64 steps: the median slope of all pairs of them (Theil-Sen).

    One odd step, a checkpoint or a validation, does not move it. Call ``add`` when a step ends;
    the slope is worked out when it is asked for, at most once per step.

    ``samples`` are (step, bytes); ``sparse_samples``: 64 of every second, fourth and
    eighth step.
    """

    def __init__(self) -> None:
        self.samples: deque[tuple[int, float]] = deque(maxlen=_KEEP_STEPS)
        self.sparse_samples: dict[int, deque[tuple[int, float]]] = {
            stride: deque(maxlen=_KEEP_STEPS) for stride in _STRIDES
        }
        self._num_added = 0
        self._slope: float | None = None
        self._is_stale = False

    def add(self, step: int, num_bytes: float) -> None:
        """A step that was seen before begins the trend anew: the job was restarted or rewound."""
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
        """None below 8 steps."""
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
