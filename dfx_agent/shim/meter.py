"""Measures how much time the guest's own code takes in the job's threads.

While a window is open, every entry point of the guest reads the clock at its begin and end. A
benchmark loop cannot replace this: between two calls a job uses all its memory, so a call takes
five to ten times as long as in a loop of equal calls (docs/benchmarks.md). The time of the clock
itself is included; torch's time to call a hook is not.

Every function of the guest that no other function of the guest calls does this::

    begin = meter.is_open and clock()
    ...
    if begin:
        meter.spent_ns += clock() - begin

If two threads add at the same moment, one addition may be lost. A lock would cost more.
"""

from __future__ import annotations

from time import perf_counter_ns as clock

__all__ = ["clock", "close_window", "is_open", "open_window", "spent_ns"]

is_open = False
spent_ns = 0  # since the window was opened, in all threads


def open_window() -> None:
    """Start to add up the time of entry points."""
    global is_open, spent_ns
    is_open, spent_ns = True, 0


def close_window() -> int:
    """Stop, and return the nanoseconds since ``open_window``, of all threads together."""
    global is_open  # noqa: PLW0603
    is_open = False
    return spent_ns
