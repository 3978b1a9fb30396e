"""The expected range of the next value of a signal.

A signal with a trend is compared with the trend, not only with its median:

- against the trend, the distance counts from the present level. Otherwise a sudden fall would fit
  into the wide band of a fast rise.
- along the trend, the distance counts from where the trend leads. Otherwise a steady drift would
  look like a sudden change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAD_TO_SIGMA = 1.4826
MEAN_DEVIATION_TO_SIGMA = 1.2533
# a trend is accepted if the spread is at least this many times the noise around the trend
TREND_SHARE = 2.0
# a trend over this many rows is expected to continue
ESTABLISHED_STEPS = 24
_LEVEL_STEPS = 8


class Trend(NamedTuple):
    """A monotone trend of the scores in a window."""

    sign: int
    """1 if the scores rise, -1 if they fall."""
    level: float
    """The present level: median of the last 8 scores."""
    next: float
    """The score expected next; equals ``level`` until the trend is established."""
    scale: float
    """Robust standard deviation around the trend."""
    is_established: bool
    """Whether the trend spans enough rows (24) to be expected to continue."""


class Band(NamedTuple):
    """The baseline of a signal at one step."""

    median: float
    scale: float
    """One robust standard deviation, at least the floor of the signal."""
    trend: Trend | None = None
    exact_scale: float = 0.0
    """``scale`` before it was widened because there are few rows; 0 if it was not widened."""

    @property
    def size_scale(self) -> float:
        """The scale for collapses by size.

        A collapse also needs a factor, so few rows do no harm.
        """
        return self.exact_scale or self.scale

    def z(self, score: float) -> float:
        """Distance of a score from the baseline, in standard deviations."""
        plain = (score - self.median) / self.scale
        trend = self.trend
        if trend is None:
            return plain
        sign = trend.sign
        against = sign * (score - trend.level) / trend.scale
        if against < 0:
            return sign * min(against, sign * plain)
        if not trend.is_established:
            return plain
        along = sign * (score - trend.next) / trend.scale
        return sign * max(0.0, min(along, sign * plain))

    def ends(self, z: float) -> tuple[float, float]:
        """The lowest and highest score within ``z`` standard deviations."""
        low, high = self.median - z * self.scale, self.median + z * self.scale
        trend = self.trend
        if trend is None:
            return low, high
        near = trend.level - trend.sign * z * trend.scale
        far = trend.next + trend.sign * z * trend.scale
        if trend.sign > 0:
            return max(low, near), max(high, far) if trend.is_established else high
        return min(low, far) if trend.is_established else low, min(high, near)


def trend_of(scores: Sequence[float], spread: float, floor: float) -> Trend | None:
    """The trend of 12 or more scores, oldest first; None unless it explains most of the spread.

    Tukey's resistant line: through the medians of the first and the last third.
    """
    if spread < TREND_SHARE * floor:
        return None
    num = len(scores)
    third = num // 3
    first, middle, last = (
        _median(part) for part in (scores[:third], scores[third:-third], scores[-third:])
    )
    slope = (last - first) / (num - third)
    sign = 1 if slope > 0 else -1
    rise = min(sign * (middle - first), sign * (last - middle))
    if rise < floor / 2:
        return None
    offsets = [score - slope * i for i, score in enumerate(scores)]
    ordered = sorted(offsets)
    offset = median_of_sorted(ordered)
    noise = MAD_TO_SIGMA * _median([abs(value - offset) for value in ordered])
    scale = max(noise, floor)
    if spread < TREND_SHARE * scale or rise < scale / 2:
        return None
    level = _median(scores[-_LEVEL_STEPS:])
    is_established = num >= ESTABLISHED_STEPS
    ahead = offset + slope * (num + 2) if is_established else level
    return Trend(sign, level, sign * max(sign * ahead, sign * level), scale, is_established)


def median_distance(ordered: Sequence[float], middle: float, near: int = 0) -> tuple[int, float]:
    """Index at which the half of the sorted scores nearest to ``middle`` begins, and its radius.

    The radius is the median of ``|score - middle|``, computed without sorting. The search for the
    index starts at ``near``, the index of the previous row.
    """
    num = len(ordered)
    half = num // 2
    most = num - half - 1
    begin = min(near, most)
    while begin < most and middle - ordered[begin] > ordered[begin + half + 1] - middle:
        begin += 1
    while begin and middle - ordered[begin - 1] <= ordered[begin + half] - middle:
        begin -= 1
    first, last = middle - ordered[begin], ordered[begin + half] - middle
    if num % 2 or not half:
        return begin, max(last, first)
    if first > last:
        return begin, (first + max(middle - ordered[begin + 1], last)) / 2
    return begin, (last + max(first, ordered[begin + half - 1] - middle)) / 2


def mean_deviation(ordered: Sequence[float]) -> float:
    """Standard deviation of sorted scores, estimated from their mean distance to the median."""
    num, half = len(ordered), len(ordered) // 2
    apart = sum(ordered[num - half :]) - sum(ordered[:half])
    return MEAN_DEVIATION_TO_SIGMA * apart / num


def _median(values: Sequence[float]) -> float:
    return median_of_sorted(sorted(values))


def median_of_sorted(values: Sequence[float]) -> float:
    num = len(values)
    middle = num // 2
    return values[middle] if num % 2 else (values[middle - 1] + values[middle]) / 2
