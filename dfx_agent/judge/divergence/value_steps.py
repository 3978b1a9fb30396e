"""The smallest difference between values of a metric: a mean over 8 samples moves by eighths."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise

# a metric with more distinct values is not a mean over few samples
MAX_VALUES = 32
_SAME = 1e-6


class ValueSteps:
    """Distinct values of a metric, and the smallest difference between two of them."""

    def __init__(self) -> None:
        self.smallest = 0.0  # 0 if there are fewer than two or too many values
        self._values: list[float] = []

    def add(self, value: float) -> None:
        values = self._values
        if len(values) >= MAX_VALUES:
            return
        index = bisect_left(values, value)
        near = values[max(0, index - 1) : index + 1]
        if any(abs(value - other) <= _SAME * max(1.0, abs(other)) for other in near):
            return
        values.insert(index, value)
        if len(values) >= MAX_VALUES:
            self.smallest = 0.0
        elif len(values) > 1:
            self.smallest = min(b - a for a, b in pairwise(values))

    def noise_at(self, level: float) -> float:
        """The smallest plausible standard deviation of a mean near ``level``.

        A mean of n samples moves in steps of 1 / n, so one step is noise. A success rate p of n
        samples has the standard deviation sqrt(p (1 - p) / n) = sqrt(p (1 - p) step) (binomial).
        """
        step = self.smallest
        if not step or self._values[0] < 0 or self._values[-1] > 1:
            return step
        share = min(1.0, max(0.0, level))
        return max(step, math.sqrt(share * (1 - share) * step))

    def save(self) -> tuple[float, ...]:
        return tuple(self._values)

    def resume(self, saved: Iterable[float]) -> None:
        self.smallest = 0.0
        self._values = []
        for value in saved:
            self.add(value)
