"""How long the guest's own code takes, timed in place in the job's threads.

While a window is open every entry of the guest reads the clock when it begins and when it ends.
That is the only way to know: between two of our calls a job runs through all its memory, so that a
call takes five to ten times what it takes in a loop of equal calls (docs/benchmarks.md). What the
clock itself takes is counted, what torch does to call a hook is not.

In a function of the guest that nothing else of it calls::

    begin = meter.is_open and clock()
    ...
    if begin:
        meter.spent_ns.append(clock() - begin)
"""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns as clock

__all__ = ["clock", "close_window", "is_open", "open_window", "spent_ns"]

_MOST_ENTRIES = 1 << 17

is_open = False
spent_ns: deque[int] = deque(maxlen=_MOST_ENTRIES)  # of the open window, from all threads


def open_window() -> None:
    """What entries take from now on is added up."""
    global is_open  # noqa: PLW0603 (read by every entry of the guest)
    is_open = True


def close_window() -> int | None:
    """Nanoseconds since ``open_window``, of all threads; None where there were too many."""
    global is_open  # noqa: PLW0603
    is_open = False
    is_full, total = len(spent_ns) == _MOST_ENTRIES, sum(spent_ns)
    spent_ns.clear()
    return None if is_full else total
