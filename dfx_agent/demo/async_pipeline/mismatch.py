"""Where the policy that generated and the one that is trained differ: by lag, and by position."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dfx_agent.demo.async_pipeline.lags import BUCKETS

END_TOKENS = 256


def by_lag(mask: Tensor, lags: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Bucket -> which tokens (B, R) of ``mask`` are in it; each is in one."""
    for name, (low, high) in BUCKETS.items():
        yield name, mask & (lags >= low) & (lags <= high)


def by_position(mask: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The first 256 tokens of each response, of the others the last 256, and what is between.

    ``mask`` (B, R) is true up to the end of each response.
    """
    place = torch.arange(mask.shape[1]).expand_as(mask)
    first = mask & (place < END_TOKENS)
    last = mask & ~first & (place >= mask.sum(dim=1, keepdim=True) - END_TOKENS)
    yield "first", first
    yield "middle", mask & ~first & ~last
    yield "last", last
