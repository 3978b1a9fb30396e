"""Lags in weight versions, by the buckets that our names of a pipeline have."""

from __future__ import annotations

import math
from collections.abc import Sequence

# name -> smallest and largest lag
BUCKETS: dict[str, tuple[float, float]] = {
    **{str(lag): (lag, lag) for lag in range(4)},
    "4-7": (4, 7),
    "8+": (8, math.inf),
}


def shares(lags: Sequence[int]) -> dict[str, float]:
    """Bucket -> share of the ``lags`` in it, for all buckets; ``lags`` are not empty."""
    return {
        name: sum(low <= lag <= high for lag in lags) / len(lags)
        for name, (low, high) in BUCKETS.items()
    }
