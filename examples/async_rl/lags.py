"""Lags in weight versions, in the buckets of the ``pipeline/...`` scalar names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

END_TOKENS = 256
# name -> smallest and largest lag
BUCKETS: dict[str, tuple[float, float]] = {
    **{str(lag): (lag, lag) for lag in range(4)},
    "4-7": (4, 7),
    "8+": (8, math.inf),
}


def shares(lags: Sequence[int]) -> dict[str, float]:
    """Bucket -> share of the ``lags`` in it, for all buckets; ``lags`` must not be empty."""
    return {
        name: sum(low <= lag <= high for lag in lags) / len(lags)
        for name, (low, high) in BUCKETS.items()
    }


def by_lag(mask: Tensor, lags: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Bucket -> mask (B, R) of the tokens in it; each token of ``mask`` is in one bucket."""
    for name, (low, high) in BUCKETS.items():
        yield name, mask & (lags >= low) & (lags <= high)


def by_position(mask: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Masks of the first 256 tokens of each response, the last 256 of the rest, and the middle.

    ``mask`` (B, R) is true up to the end of each response.
    """
    place = torch.arange(mask.shape[1]).expand_as(mask)
    first = mask & (place < END_TOKENS)
    last = mask & ~first & (place >= mask.sum(dim=1, keepdim=True) - END_TOKENS)
    yield "first", first
    yield "middle", mask & ~first & ~last
    yield "last", last
