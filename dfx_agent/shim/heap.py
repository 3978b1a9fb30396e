"""Samples how much memory glibc's malloc has allocated, and how much it retains after ``free``.

A thread of the guest samples every 10 s, if the job has loaded ctypes (torch does) and glibc has
``mallinfo2`` (2.33 and newer). ``mallinfo2`` walks the list of free pieces under malloc's lock:
0.02 ms for few pieces, 10 to 60 ms for a million. The pause is therefore 2000 times the CPU time of
the last call, and sampling ends after a call of 0.1 s. (Wall time would include waits for the GIL.)

There are no samples if the job uses another malloc (jemalloc, tcmalloc): all numbers would be 0. If
the job has corrupted the list of free pieces, glibc aborts the process, as it would at a later
malloc of the job. ``DFX_DISABLE_HOOKS=heap`` disables sampling.

All arenas are included. Pieces in the caches of threads count as allocated. Python's own small
objects (up to 512 bytes) are in memory that Python requests from the kernel: not included.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dfx_agent.wire import variables

HOOK = "heap"
PERIOD_SECONDS = 10.0
_PAUSE_PER_COST, _MAX_COST_SECONDS = 2000.0, 0.1
# fields of struct mallinfo2, all size_t
_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip

USED, MAPPED, FREE, PIECES = (
    "heap/used_bytes", "heap/mapped_bytes", "heap/free_bytes", "heap/num_free_pieces",
)  # fmt: skip
GIVEN_UP = "heap/given_up"


class HeapSampler:
    """Emits gauges about malloc; emits nothing if glibc does not provide the numbers."""

    def __init__(self) -> None:
        self._ask: Callable[[], Any] | None = None
        self._is_over = False
        self._next_seconds = time.monotonic() + PERIOD_SECONDS

    def sample(self, emit_gauge: Callable[[str, float], None]) -> None:
        """Sample if it is time to, at most every 10 s."""
        now = time.monotonic()
        if self._is_over or now < self._next_seconds:
            return
        self._next_seconds = now + PERIOD_SECONDS
        if self._ask is None:
            self._look_for_glibc()
        if self._ask is None:
            return
        begin_seconds = time.thread_time()
        info = self._ask()
        cost_seconds = time.thread_time() - begin_seconds
        self._next_seconds += cost_seconds * _PAUSE_PER_COST
        emit_gauge(USED, float(info.uordblks))
        emit_gauge(MAPPED, float(info.hblkhd))
        emit_gauge(FREE, float(info.fordblks))
        emit_gauge(PIECES, float(info.ordblks + info.smblks))
        if cost_seconds > _MAX_COST_SECONDS:
            self._is_over = True
            emit_gauge(GIVEN_UP, cost_seconds)

    def _look_for_glibc(self) -> None:
        if {HOOK, "all"} & variables.DISABLE_HOOKS.value():
            self._is_over = True
            return
        ctypes = sys.modules.get("ctypes")
        if ctypes is None or _is_being_imported(ctypes):
            return  # the job may load it later, or does so right now
        with suppress(OSError, AttributeError):  # another libc, or an older one
            self._ask = _mallinfo2(ctypes)
        self._is_over = self._ask is None


def _is_being_imported(module: Any) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _mallinfo2(ctypes: Any) -> Callable[[], Any] | None:
    """The function ``mallinfo2``; None if the process uses another malloc.

    Raises AttributeError or OSError if glibc is too old or not present.
    """
    fields = [(name, ctypes.c_size_t) for name in _FIELDS]
    glibc, process = ctypes.CDLL("libc.so.6"), ctypes.CDLL(None)
    ask = glibc.mallinfo2
    ask.restype = type("mallinfo2", (ctypes.Structure,), {"_fields_": fields})
    ask.argtypes = ()
    pointers = [ctypes.cast(library.malloc, ctypes.c_void_p) for library in (glibc, process)]
    called: Callable[[], Any] = ask
    return called if pointers[0].value == pointers[1].value else None
