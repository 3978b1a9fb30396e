"""Computes how much longer each rank works than the others, and how much of it tokens explain.

Medians over ranks and steps are used, so that a single stall has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil, sqrt
from statistics import fmean, median
from typing import NamedTuple

from dfx_agent.facts.steps import RankStep, Step
from dfx_agent.judge.straggler.columns import Columns, Measure, Row, minus

Table = Mapping[str, Sequence[float]]  # rank -> seconds per step, oldest first
Count = Callable[[RankStep], float]

_COUNTS: dict[str, Count] = {
    "tokens": lambda rank_step: rank_step.num_tokens or 0.0,
    "tokens with padding": lambda rank_step: rank_step.num_forward_tokens or 0.0,
}


class Window(NamedTuple):
    """A number of latest steps, and the thresholds for an excess in them.

    Both must hold: ``num_hits`` steps reach ``share``, so that outliers cause no verdict; and the
    mean excess, with each step capped at ``MOST_SIGMAS``, reaches ``sigmas``.
    """

    num_steps: int
    num_hits: int
    share: float
    """Excess as a share of the duration of a step."""
    sigmas: float
    """Mean excess in standard deviations of the mean."""

    def to_stay(self) -> Window:
        """For a rank that is a straggler already: a few better steps do not end it."""
        return self._replace(num_hits=self.num_steps // 2 + 1, sigmas=self.sigmas / 2)


MOST_SIGMAS = 3.0
# chosen with bench/stragglers.py, which reports their detection and false alarm rates
WINDOWS = (
    Window(20, 14, 0.05, 5.2),
    Window(10, 8, 0.05, 5.4),
    Window(5, 4, 0.05, 5.4),
)
FIRST_WINDOW = Window(3, 3, 0.15, 4.9)  # while there are no 5 steps
_USED_SHARE = 0.6
_USED_MEAN = 0.3966 * sqrt(2)  # mean of the smaller 60 % of |x - y| for standard normal x and y
_MIN_OWN_DIFFERENCES = 15
_MUCH_NOISIER = 1.5
_CHANGE_SIGMAS = 4.0
_PRIOR_TOKEN_SPREAD = 0.1
_NUM_PRIOR = 6  # weight of the prior "work is proportional to tokens", in rank-steps


def others_median(values: Mapping[str, float], rank: str) -> float:
    """Median over all ranks but this one."""
    return median(value for label, value in values.items() if label != rank)


def work(rank_step: RankStep) -> float | None:
    return rank_step.work_seconds


def busy(rank_step: RankStep) -> float | None:
    return rank_step.busy_seconds


class TokenWork(NamedTuple):
    """The part of the excess that more tokens explain."""

    words: str
    """The kind of tokens, for texts."""
    count_of: Count
    seconds: Table


class RankExcess(NamedTuple):
    """The excess of the ranks by one measure."""

    table: Table
    """Excess in seconds, without the part that ``tokens`` explain."""
    sigmas: Mapping[str, float]
    """Noise of a single step by rank, see ``spreads``."""
    tokens: TokenWork | None
    """None if tokens are not considered."""


def views(steps: Sequence[Step], columns: Columns) -> list[RankExcess]:
    """Up to four views: wall time and CPU time of the work, each with and without tokens.

    CPU time excludes the time in which the host ran other threads. If threads spin while they wait,
    all ranks have the same CPU time, so it accuses none.
    """
    columns.set_steps(steps)
    found = []
    for measure in (work, busy):
        usable = [step for step in steps if columns.is_known(step, measure)]
        if len(usable) >= FIRST_WINDOW.num_steps:
            rows = [columns.excess(step, measure) for step in usable]
            table = _by_rank(list(steps[-1].ranks), rows)
            found.append(RankExcess(table, spreads(table), None))
            found += _at_equal_tokens(usable, measure, columns)
    return found


def _at_equal_tokens(steps: Sequence[Step], measure: Measure, columns: Columns) -> list[RankExcess]:
    """The view at equal tokens, by the kind of tokens with the least noise; [] if unknown.

    With padding, the longest sequence of a rank determines its work, not the sum of tokens. The
    first forward passes of a job are not counted, so only the latest steps may be usable.
    """
    works = []
    for words, count in _COUNTS.items():
        usable = [step for step in steps if columns.is_known(step, count)]
        if len(usable) >= FIRST_WINDOW.num_steps and usable[-1] is steps[-1]:
            works.append(_without_tokens(words, count, usable, measure, columns))
    return sorted(works, key=lambda view: fmean(view.sigmas.values()))[:1]


def _without_tokens(
    words: str, count: Count, steps: Sequence[Step], measure: Measure, columns: Columns
) -> RankExcess:
    ranks = list(steps[-1].ranks)
    seconds, counts = ([columns.column(s, what) for s in steps] for what in (measure, count))
    elasticities = _elasticities(seconds, counts)
    table, rest = [], []
    for step, had in zip(steps, counts, strict=True):
        usual = columns.others(step, measure)
        in_proportion = (n / m - 1 for n, m in zip(had, columns.others(step, count), strict=True))
        row = [e * u * p for e, u, p in zip(elasticities, usual, in_proportion, strict=True)]
        table.append(row)
        rest.append(minus(columns.excess(step, measure), row))
    without = _by_rank(ranks, rest)
    return RankExcess(without, spreads(without), TokenWork(words, count, _by_rank(ranks, table)))


def _elasticities(seconds: Sequence[Row], counts: Sequence[Row]) -> list[float]:
    """How work depends on tokens, estimated for each rank from the other ranks.

    0: independent, 1: proportional. If the tokens hardly differ, 1 is assumed.
    """
    prior = _PRIOR_TOKEN_SPREAD**2 * _NUM_PRIOR
    products, squares = [0.0] * len(seconds[0]), [0.0] * len(seconds[0])
    for worked, had in zip(seconds, counts, strict=True):
        usual, typical = median(worked), median(had)
        for rank, (own, n) in enumerate(zip(worked, had, strict=True)):
            more = n / typical - 1
            products[rank] += more * (own / usual - 1) if usual else 0.0
            squares[rank] += more * more
    product, square = sum(products) + prior, sum(squares) + prior
    return [
        min(1.0, max(0.0, (product - own) / (square - squared)))
        for own, squared in zip(products, squares, strict=True)
    ]


def _by_rank(ranks: Sequence[str], rows: Sequence[Row]) -> dict[str, list[float]]:
    return {rank: list(column) for rank, column in zip(ranks, zip(*rows, strict=True), strict=True)}


def spreads(table: Table) -> dict[str, float]:
    """Noise of the excess of a single step, by rank: a standard deviation.

    It is computed from differences of successive steps, so a constant excess, stalls and warm-up do
    not count. All ranks have the same noise, unless one is clearly noisier. With few differences
    the noise is increased.
    """
    differences = {rank: [abs(b - a) for a, b in pairwise(row)] for rank, row in table.items()}
    pooled = [difference for row in differences.values() for difference in row]
    num = len(pooled) * (len(table) - 1) / len(table)
    pooled_sigma = _deviation(pooled)
    own = {
        rank: _deviation(row) if len(row) >= _MIN_OWN_DIFFERENCES else pooled_sigma
        for rank, row in differences.items()
    }
    return {
        rank: (sigma if sigma > _MUCH_NOISIER * pooled_sigma else pooled_sigma) * (1 + 4 / num)
        for rank, sigma in own.items()
    }


def _deviation(differences: Sequence[float]) -> float:
    smallest = sorted(differences)[: max(1, ceil(_USED_SHARE * len(differences)))]
    return fmean(smallest) / _USED_MEAN


def recurs(row: Sequence[float], window: Window, sigma: float, step_seconds: float) -> bool:
    """Whether the latest excesses of a rank exceed the thresholds of the window."""
    latest = row[-window.num_steps :]
    if len(latest) < window.num_steps:
        return False
    least = window.share * step_seconds
    if sum([excess >= least for excess in latest]) < window.num_hits:
        return False
    mean = fmean(min(excess, MOST_SIGMAS * sigma) for excess in latest)
    return mean * sqrt(len(latest)) >= window.sigmas * sigma


def reach_seconds(window: Window, sigma: float, step_seconds: float) -> float:
    """The excess that would be found with a probability of five in six."""
    return max(window.share * step_seconds, (window.sigmas + 1) * sigma / sqrt(window.num_steps))


def num_on_level(row: Sequence[float], sigma: float) -> int:
    """How many of the latest values are on one level, without values before a change.

    The change is the split that reduces the sum of squares most, if it is significant.
    """
    num_latest, most = len(row), (_CHANGE_SIGMAS * sigma) ** 2
    for num in range(FIRST_WINDOW.num_steps, len(row)):
        shift = fmean(row[-num:]) - fmean(row[:-num])
        gain = shift * shift * num * (len(row) - num) / len(row)
        if gain > most:
            num_latest, most = num, gain
    return num_latest


def middle_mean(values: Iterable[float]) -> float:
    """Mean of the middle 60 % of the values, so that stalls have little effect."""
    ordered = sorted(values)
    cut = len(ordered) // 5
    return fmean(ordered[cut : len(ordered) - cut])
