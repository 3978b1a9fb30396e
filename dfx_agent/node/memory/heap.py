"""What glibc's malloc keeps in one process: the guest's gauges, held against what is in memory.

glibc's own account of what is free contains pages that it has given back to the kernel long ago. So
what is resident of its arenas is read where much is said to be free.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

from dfx_agent.node.host.memory import glibc_arena_bytes
from dfx_agent.snapshot import GlibcHeap

_USED, _MAPPED, _FREE, _PIECES = (
    f"heap/{name}" for name in ("used_bytes", "mapped_bytes", "free_bytes", "num_free_pieces")
)
_GIVEN_UP = "heap/given_up"
_LOOK_EVERY_NS = 30 * 10**9
_MUCH_BYTES = 64 * 2**20


class ProcessHeap:
    """Of one process; ``now`` is None where the guest does not say anything (any more)."""

    def __init__(self) -> None:
        self.now: GlibcHeap | None = None
        self._known: tuple[float | None, ...] = ()
        self._next_ns = 0

    def look(self, now_ns: int, pid: int, gauges: Mapping[str, float]) -> None:
        """Where the guest has said something new: what it says is true for a moment only."""
        if _FREE not in gauges:
            return
        if _GIVEN_UP in gauges:
            self.now = None
            return
        known = tuple(gauges.get(name) for name in (_USED, _MAPPED, _FREE, _PIECES))
        if known == self._known or now_ns < self._next_ns:
            return
        self._known, self._next_ns = known, now_ns + _LOOK_EVERY_NS
        used, mapped, free, num_pieces = (value or 0.0 for value in known)
        resident = glibc_arena_bytes(pid) if free >= _MUCH_BYTES else used + free
        self.now = heap_of(used, mapped, free, num_pieces, resident)


def heap_of(
    used: float, mapped: float, free: float, num_pieces: float, resident: float | None
) -> GlibcHeap:
    """In bytes; ``resident`` of the arenas, None where that is not known.

    Of each free piece a page is taken off: it begins and ends within one.
    """
    if resident is None:
        return GlibcHeap(used + mapped, None, None)
    retained = min(free, max(0.0, resident - used))
    trimmable = max(0.0, retained - num_pieces * mmap.PAGESIZE)
    return GlibcHeap(used + mapped, retained, trimmable)
