"""Which share of the samples a run gives up, judged over steps: one failed sample is no finding."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median_low

# the signal input that it reads: of all samples of a step, 0 to 1
ABORTED = "aborted"
NUM_STEPS = 8


class AbortedShare:
    """``recent_median`` of the newest 8 steps that told a share (the lower of two), else None.

    More than half of the steps must be above a bound for it to be above: a single failure in a
    small batch is a large share of one step.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=NUM_STEPS)

    def observe(self, values: Mapping[str, float]) -> None:
        share = values.get(ABORTED, math.nan)
        if math.isfinite(share):
            self._recent.append(share)

    @property
    def recent_median(self) -> float | None:
        return median_low(self._recent) if len(self._recent) == NUM_STEPS else None

    def kept(self) -> tuple[float, ...]:
        return tuple(self._recent)

    def resume(self, kept: Iterable[float]) -> None:
        self._recent = deque(kept, NUM_STEPS)
