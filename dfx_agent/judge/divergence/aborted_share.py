"""The share of samples that a run aborts, judged over several steps.

One failed sample is no finding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median_low

from dfx_agent.catalogue.native.signal_sources import ABORTED

NUM_STEPS = 8


class AbortedShare:
    """Stores the aborted share of the last 8 steps that reported one.

    A single failure in a small batch is a large share of one step. Therefore alerts compare the
    median, which exceeds a bound only if more than half of the steps do.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=NUM_STEPS)

    def observe(self, values: Mapping[str, float]) -> None:
        share = values.get(ABORTED, math.nan)
        if math.isfinite(share):
            self._recent.append(share)

    @property
    def recent_median(self) -> float | None:
        """Lower median of the last 8 reported shares; None before 8 steps have reported one."""
        return median_low(self._recent) if len(self._recent) == NUM_STEPS else None

    def save(self) -> tuple[float, ...]:
        return tuple(self._recent)

    def resume(self, saved: Iterable[float]) -> None:
        self._recent = deque(saved, NUM_STEPS)
