"""What glibc's malloc has given out and what it keeps of it after it was freed.

Asked in a thread of the guest's own every 10 s, where the job has loaded ctypes (torch does) and
glibc has ``mallinfo2`` (2.33 and newer). It walks the list of free pieces with malloc's lock held:
0.02 ms where there are few, 10 to 60 ms for a million. So it waits 2000 times as long as the last
time took, and gives up where one took 0.1 s. Processor time counts: on a busy machine the thread
waits for the interpreter, not for malloc.

Nobody is asked where another malloc has taken glibc's place (jemalloc, tcmalloc preloaded): all its
numbers would be 0. Where the job has written over the list, glibc ends the process, as it would
when the job itself came to that piece; ``DFX_DISABLE_HOOKS=heap`` asks no more.

Counted are all arenas. Pieces in the caches of threads count as given out. Python's own small
objects (up to 512 bytes) are in memory that it takes from the kernel by itself: not counted here.
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
_PAUSE_PER_COST, _MOST_SECONDS = 2000.0, 0.1
# of struct mallinfo2: all size_t
_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip

USED, MAPPED, FREE, PIECES = (
    "heap/used_bytes", "heap/mapped_bytes", "heap/free_bytes", "heap/num_free_pieces",
)  # fmt: skip
GIVEN_UP = "heap/given_up"


class HeapSampler:
    """Emits gauges; silent where glibc cannot be asked."""

    def __init__(self) -> None:
        self._ask: Callable[[], Any] | None = None
        self._is_over = False
        self._next_seconds = time.monotonic() + PERIOD_SECONDS

    def sample(self, emit_gauge: Callable[[str, float], None]) -> None:
        """Where it is time to: at most once in 10 s."""
        now = time.monotonic()
        if self._is_over or now < self._next_seconds:
            return
        self._next_seconds = now + PERIOD_SECONDS
        if self._ask is None:
            self._look_for_glibc()
        if self._ask is None:
            return
        begin_seconds = time.thread_time()
        told = self._ask()
        cost_seconds = time.thread_time() - begin_seconds
        self._next_seconds += cost_seconds * _PAUSE_PER_COST
        emit_gauge(USED, float(told.uordblks))
        emit_gauge(MAPPED, float(told.hblkhd))
        emit_gauge(FREE, float(told.fordblks))
        emit_gauge(PIECES, float(told.ordblks + told.smblks))
        if cost_seconds > _MOST_SECONDS:
            self._is_over = True
            emit_gauge(GIVEN_UP, cost_seconds)

    def _look_for_glibc(self) -> None:
        if {HOOK, "all"} & variables.DISABLE_HOOKS.value():
            self._is_over = True
            return
        ctypes = sys.modules.get("ctypes")
        if ctypes is None or _is_being_imported(ctypes):
            return  # the job may load it yet, or does just now
        with suppress(OSError, AttributeError):  # another libc, or an older one
            self._ask = _mallinfo2(ctypes)
        self._is_over = self._ask is None


def _is_being_imported(module: Any) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _mallinfo2(ctypes: Any) -> Callable[[], Any] | None:
    """None where another malloc is the process's.

    AttributeError, OSError: there is no such function, or no glibc.
    """
    fields = [(name, ctypes.c_size_t) for name in _FIELDS]
    glibc, process = ctypes.CDLL("libc.so.6"), ctypes.CDLL(None)
    ask = glibc.mallinfo2
    ask.restype = type("mallinfo2", (ctypes.Structure,), {"_fields_": fields})
    ask.argtypes = ()
    pointers = [ctypes.cast(library.malloc, ctypes.c_void_p) for library in (glibc, process)]
    called: Callable[[], Any] = ask
    return called if pointers[0].value == pointers[1].value else None
