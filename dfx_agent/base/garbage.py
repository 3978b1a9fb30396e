"""Runs the garbage collector rarely: the objects of an agent or a hub have almost no cycles.

Records, facts and rows are trees of frozen values that are freed with their last reference. At
Python's default rate, the collector took a quarter of the time of a replay of 1,024 ranks, and a
full collection tripled the time of the slowest scrapes.
"""

from __future__ import annotations

import gc

_NUM_NEW = 50_000  # values more than before, until the young ones are looked at
_NUM_YOUNG, _NUM_MIDDLE = 20, 20


def collect_rarely() -> None:
    """Of this process, once it is put together: what there is by then stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NUM_NEW, _NUM_YOUNG, _NUM_MIDDLE)
