"""The band of one baseline: where the next value is expected, and how far off is unusual.

A signal with an established trend is judged by what is left when the trend is taken out: against
the trend from where it stands now, so that a cliff does not fit into the band that a fast rise has
made wide; along the trend only where it outruns it, so that a drift is no sudden change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAD_TO_SIGMA = 1.4826
MEAN_DEVIATION_TO_SIGMA = 1.2533
# the trend has to explain that much of the spread before it is believed
TREND_SHARE = 2.0
# rows from which on a trend is believed to go on
ESTABLISHED_STEPS = 24
_LEVEL_STEPS = 8


class Trend(NamedTuple):
    """A monotone trend of a window: where it stands, where it leads, the noise around it.

    ``next`` equals ``level`` while the trend is not old enough to be believed to go on.
    """

    sign: int
    level: float
    next: float
    scale: float
    is_established: bool


class Band(NamedTuple):
    """The baseline at one step; ``scale`` is one robust standard deviation, floors applied.

    ``exact_scale`` is the same before it was widened for few rows, 0 where it was not.
    """

    median: float
    scale: float
    trend: Trend | None = None
    exact_scale: float = 0.0

    @property
    def size_scale(self) -> float:
        """What the size of a collapse is measured with: a factor is asked for as well."""
        return self.exact_scale or self.scale

    def z(self, score: float) -> float:
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
        """The scores whose z are ``-z`` and ``z``."""
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
    """The trend of ``scores`` (in order, 12 or more), if it makes most of their ``spread``.

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
    noise = MAD_TO_SIGMA * _median([abs(each - offset) for each in ordered])
    scale = max(noise, floor)
    if spread < TREND_SHARE * scale or rise < scale / 2:
        return None
    level = _median(scores[-_LEVEL_STEPS:])
    is_established = num >= ESTABLISHED_STEPS
    ahead = offset + slope * (num + 2) if is_established else level
    return Trend(sign, level, sign * max(sign * ahead, sign * level), scale, is_established)


def median_distance(ordered: Sequence[float], middle: float, near: int = 0) -> tuple[int, float]:
    """Where the nearer half of sorted scores begins, and its farthest distance from ``middle``.

    The latter is the median of ``|score - middle|``, without a sort. Distances grow to both ends:
    the begin is searched from ``near``, where it was a row before.
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
    """Standard deviation of sorted scores by their mean distance from the median."""
    num, half = len(ordered), len(ordered) // 2
    apart = sum(ordered[num - half :]) - sum(ordered[:half])
    return MEAN_DEVIATION_TO_SIGMA * apart / num


def _median(values: Sequence[float]) -> float:
    return median_of_sorted(sorted(values))


def median_of_sorted(values: Sequence[float]) -> float:
    num = len(values)
    middle = num // 2
    return values[middle] if num % 2 else (values[middle - 1] + values[middle]) / 2
