"""How long the guest's own code takes, timed in place in the job's threads.

While a window is open every entry of the guest reads the clock when it begins and when it ends.
That is the only way to know: between two of our calls a job runs through all its memory, so that a
call takes five to ten times what it takes in a loop of equal calls (docs/benchmarks.md). What the
clock itself takes is counted, what torch does to call a hook is not.

In a function of the guest that nothing else of it calls::

    begin = meter.is_open and clock()
    ...
    if begin:
        meter.spent_ns += clock() - begin

Where two threads add at the same moment, one addition may be lost: a lock would cost more.
"""

from __future__ import annotations

from time import perf_counter_ns as clock

__all__ = ["clock", "close_window", "is_open", "open_window", "spent_ns"]

is_open = False
spent_ns = 0  # since the window was opened, in all threads


def open_window() -> None:
    """What entries take from now on is added up."""
    global is_open, spent_ns
    is_open, spent_ns = True, 0


def close_window() -> int:
    """Nanoseconds since ``open_window``, of all threads together."""
    global is_open  # noqa: PLW0603
    is_open = False
    return spent_ns
