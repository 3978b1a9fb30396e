"""The smallest step between values of one metric: a mean over 8 samples moves by eighths."""

from __future__ import annotations

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

    def kept(self) -> tuple[float, ...]:
        return tuple(self._values)

    def resume(self, kept: Iterable[float]) -> None:
        self.smallest = 0.0
        self._values = []
        for value in kept:
            self.add(value)
