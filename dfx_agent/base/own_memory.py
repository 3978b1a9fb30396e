"""Memory of the agent or hub itself: collects garbage rarely, and returns what glibc retains."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import Any

FIRST_SECONDS, EVERY_SECONDS = 60.0, 600.0
_M_ARENA_MAX = -8  # malloc.h


class OwnMemory:
    """Returns freed memory to the kernel, in one thread from ``start`` to ``stop``.

    glibc retains pages between blocks that are still in use: 6 MiB after the imports of a start,
    7 MiB after some minutes with engines. They are released a minute after the start and every ten
    minutes. Threads share one heap, so that one uses what another has freed: create this before
    other threads. Another libc or malloc is not touched. This is never done in a job.
    """

    def __init__(self, first_seconds: float = FIRST_SECONDS) -> None:
        self._first_seconds = first_seconds
        self._over = threading.Event()
        self._glibc = _glibc()
        if self._glibc is not None:
            self._glibc.mallopt(_M_ARENA_MAX, 1)

    def start(self) -> None:
        threading.Thread(target=self._run, name="dfx-own-memory", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        seconds = self._first_seconds
        while self._glibc is not None and not self._over.wait(seconds):
            self._glibc.malloc_trim(0)
            seconds = EVERY_SECONDS


def _glibc() -> Any:
    """None for another libc."""
    import ctypes  # noqa: PLC0415 (2 ms)

    with suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        return library if library.malloc_trim and library.mallopt else None
    return None


# thresholds of gc.set_threshold(): allocations for generation 0, collections for 1 and 2
IN_A_HUB = 50_000, 20, 20
# answers of its web server have cycles: with the numbers of a hub they held 10 MiB more
IN_AN_AGENT = 5_000, 10, 10


def collect_rarely(thresholds: tuple[int, int, int] = IN_A_HUB) -> None:
    """Run the garbage collector rarely: the objects of an agent or a hub have almost no cycles.

    Call it at the end of start-up: objects that exist by then are never examined again. Records,
    facts and rows are trees of frozen values that are freed with their last reference. At Python's
    default rate, the collector took a quarter of the time of a replay of 1,024 ranks, and a full
    collection tripled the time of the slowest scrapes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)
