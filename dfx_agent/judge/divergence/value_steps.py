"""The smallest step between values of one metric: a mean over 8 samples moves by eighths."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise

# a metric with more different values is no count of a few samples
MAX_VALUES = 32
_SAME = 1e-6


class ValueSteps:
    """Different values seen so far; ``smallest`` is 0 until two, and where there are many."""

    def __init__(self) -> None:
        self.smallest = 0.0
        self._values: list[float] = []

    def add(self, value: float) -> None:
        values = self._values
        if len(values) >= MAX_VALUES:
            return
        place = bisect_left(values, value)
        near = values[max(0, place - 1) : place + 1]
        if any(abs(value - other) <= _SAME * max(1.0, abs(other)) for other in near):
            return
        values.insert(place, value)
        if len(values) >= MAX_VALUES:
            self.smallest = 0.0
        elif len(values) > 1:
            self.smallest = min(b - a for a, b in pairwise(values))

    def noise_at(self, level: float) -> float:
        """The smallest standard deviation to believe of a mean that stands at ``level``.

        A mean of n samples moves by steps of 1/n, so one whole step is noise. A share p of n has
        the standard deviation sqrt(p (1 - p) / n) (binomial), which is sqrt(p (1 - p) step).
        """
        step = self.smallest
        if not step or self._values[0] < 0 or self._values[-1] > 1:
            return step
        share = min(1.0, max(0.0, level))
        return max(step, math.sqrt(share * (1 - share) * step))

    def kept(self) -> tuple[float, ...]:
        return tuple(self._values)

    def resume(self, kept: Iterable[float]) -> None:
        self.smallest = 0.0
        self._values = []
        for value in kept:
            self.add(value)
