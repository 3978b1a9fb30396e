"""Medians of step times with intervals.

The interval of one median is between order statistics (binomial, 95 %), which assumes no
distribution. The interval of a ratio of medians is a bootstrap of blocks of steps, because steps
that follow each other are alike: 1,000 resamples, 2.5 % to 97.5 %, always the same random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

MIN_STEPS = 10
_NUM_RESAMPLES = 1000
_TAIL = 0.025
_EXACT_STEPS = 1000  # binomial coefficients of more are slow, and the normal limit is exact enough


@dataclass(frozen=True, slots=True)
class Interval:
    """A number and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """Median with its interval. ValueError without values."""
    ordered = sorted(values)
    first = _order_statistic(len(ordered))
    return Interval(median(ordered), ordered[first], ordered[-1 - first])


def _order_statistic(num_values: int) -> int:
    """Index of the lower end: at most 2.5 % of samples have their median below it."""
    if num_values > _EXACT_STEPS:
        return int((num_values - 1.96 * num_values**0.5) / 2)
    below, index = 0, 0
    while True:
        below += comb(num_values, index)
        if below > _TAIL * 2**num_values:
            return max(0, index - 1)
        index += 1


def ratio_interval(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Median of ``after`` / median of ``before``, with its interval. Medians must be above 0."""
    numbers = random.Random(0)  # noqa: S311 (no secret: the same result each time)
    ratios = sorted(
        median(_resampled(after, numbers)) / median(_resampled(before, numbers))
        for _ in range(_NUM_RESAMPLES)
    )
    cut = int(_TAIL * _NUM_RESAMPLES)
    return Interval(median(after) / median(before), ratios[cut], ratios[-1 - cut])


def _resampled(values: Sequence[float], numbers: random.Random) -> list[float]:
    """As many values again, in blocks of neighbours."""
    size = max(1, round(len(values) ** (1 / 3)))
    found: list[float] = []
    while len(found) < len(values):
        begin = numbers.randrange(len(values) - size + 1)
        found += values[begin : begin + size]
    return found[: len(values)]
