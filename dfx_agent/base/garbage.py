"""Runs the garbage collector rarely: the objects of an agent or a hub have almost no cycles.

Records, facts and rows are trees of frozen values that are freed with their last reference. At
Python's default rate, the collector took a quarter of the time of a replay of 1,024 ranks, and a
full collection tripled the time of the slowest scrapes.
"""

from __future__ import annotations

import gc

# thresholds of gc.set_threshold(): allocations for generation 0, collections for 1 and 2
IN_A_HUB = 50_000, 20, 20
# answers of its web server have cycles: with the numbers of a hub they held 10 MiB more
IN_AN_AGENT = 5_000, 10, 10


def collect_rarely(thresholds: tuple[int, int, int] = IN_A_HUB) -> None:
    """Call at the end of start-up: objects that exist by then are never examined again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)
