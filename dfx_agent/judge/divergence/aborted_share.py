"""The share of samples that a run aborts, or whose requests time out, over several steps.

One failed sample is no finding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median_low

from dfx_agent.catalogue.native.signal_sources import ABORTED, TIMED_OUT

NUM_STEPS = 8


class AbortedShare:
    """Stores the share of the first and the last 8 steps that reported one.

    A single failure in a small batch is a large share of one step. Therefore alerts compare the
    median, which exceeds a bound only if more than half of the steps do.
    """

    signal, if_missing = ABORTED, math.nan

    def __init__(self) -> None:
        self._start: list[float] = []
        self._recent: deque[float] = deque(maxlen=NUM_STEPS)

    def observe(self, values: Mapping[str, float]) -> None:
        share = values.get(self.signal, self.if_missing)
        if math.isfinite(share):
            self._recent.append(share)
            if len(self._start) < NUM_STEPS:
                self._start.append(share)

    @property
    def recent_median(self) -> float | None:
        """Lower median of the last 8 reported shares; None before 8 steps have reported one."""
        return median_low(self._recent) if len(self._recent) == NUM_STEPS else None

    @property
    def rise(self) -> float | None:
        """``recent_median`` less that of the first 8 reported shares."""
        recent = self.recent_median
        return None if recent is None else recent - median_low(self._start)

    def save(self) -> tuple[float, ...]:
        """The first 8 shares, then the last 8; all of them while they are the same."""
        is_same = len(self._start) < NUM_STEPS
        return tuple(self._recent) if is_same else (*self._start, *self._recent)

    def resume(self, saved: Iterable[float]) -> None:
        shares = list(saved)
        self._start, self._recent = shares[:NUM_STEPS], deque(shares, NUM_STEPS)


class TimeoutShare(AbortedShare):
    """The same for requests that timed out.

    It is 0 in a step without failures: a job need not report a reason that did not occur.
    """

    signal, if_missing = TIMED_OUT, 0.0
