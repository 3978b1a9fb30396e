"""Runs the garbage collector rarely: the objects of an agent or a hub have almost no cycles.

Records, facts and rows are trees of frozen values that are freed with their last reference. At
Python's default rate, the collector took a quarter of the time of a replay of 1,024 ranks, and a
full collection tripled the time of the slowest scrapes.
"""

from __future__ import annotations

import gc

# new values until the young ones are examined; then how often, until older ones are examined
IN_A_HUB = 50_000, 20, 20
# answers of its web server have cycles: with the numbers of a hub they held 10 MiB more
IN_AN_AGENT = 5_000, 10, 10


def collect_rarely(thresholds: tuple[int, int, int] = IN_A_HUB) -> None:
    """Of this process, once it is put together: what there is by then stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)
