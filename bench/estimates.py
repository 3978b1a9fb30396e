"""The statistics of the benches: pure functions, standard library only."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


def quantile(values: Sequence[float], q: float) -> float:
    """Linear between the two nearest order statistics; ``q`` in [0, 1], at least one value."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def bootstrap_interval(
    statistic: Callable[..., float],
    *samples: Sequence[float],
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % percentile interval of ``statistic(*samples)``.

    Each sample is drawn anew, with replacement and independently of the others: pair what belongs
    together before (for example as one ratio per round). The same seed gives the same interval.
    """
    draw = random.Random(seed)
    drawn = sorted(
        statistic(*(draw.choices(sample, k=len(sample)) for sample in samples))
        for _ in range(num_resamples)
    )
    tail = (1 - CONFIDENCE) / 2
    return quantile(drawn, tail), quantile(drawn, 1 - tail)


def difference_of_medians(ours: Sequence[float], baseline: Sequence[float]) -> float:
    return median(ours) - median(baseline)


def share_interval(num_found: int, num_tried: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson, J. Am. Stat. Assoc. 22, 1927)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, weight = num_found / num_tried, z * z / num_tried
    middle = share + weight / 2
    half = z * math.sqrt(share * (1 - share) / num_tried + weight / (4 * num_tried))
    return (middle - half) / (1 + weight), (middle + half) / (1 + weight)
