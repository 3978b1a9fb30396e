"""How much more each rank worked than the others, how steadily, and how much of it is tokens.

Robust on purpose: medians over the other ranks and over steps, so that one stall of one rank moves
nothing. Table of seconds: rank -> one value per step, oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil, sqrt
from statistics import fmean, median
from typing import NamedTuple

from dfx_agent.facts.steps import RankStep, Step
from dfx_agent.judge.straggler.columns import Columns, Measure, Row, minus

Table = Mapping[str, Sequence[float]]
Count = Callable[[RankStep], float]

_COUNTS: dict[str, Count] = {
    "tokens": lambda of: of.num_tokens or 0.0,
    "tokens with padding": lambda of: of.num_forward_tokens or 0.0,
}


class Window(NamedTuple):
    """The newest steps, and when an excess in them is no chance.

    Their mean, each held to ``MOST_SIGMAS``, must reach ``share`` of a step and ``sigmas`` of its
    own deviation; and so must ``num_hits`` of the steps, that outliers of a rank forge no verdict.
    """

    num_steps: int
    num_hits: int
    share: float
    sigmas: float

    def to_stay(self) -> Window:
        """For a rank that is a straggler already: a few better steps do not end it."""
        return self._replace(num_hits=self.num_steps // 2 + 1, sigmas=self.sigmas / 2)


MOST_SIGMAS = 3.0
# Chosen with bench/stragglers.py; what they find and what they accuse for nothing is told there.
WINDOWS = (
    Window(20, 14, 0.05, 5.2),
    Window(10, 8, 0.05, 5.4),
    Window(5, 4, 0.05, 5.4),
)
FIRST_WINDOW = Window(3, 3, 0.15, 4.9)  # while there are no 5 steps
_KEPT_SHARE = 0.6
_KEPT_MEAN = 0.3966 * sqrt(2)  # mean of the smaller 60 % of |x - y| for standard normal x and y
_MIN_OWN_DIFFERENCES = 15
_MUCH_NOISIER = 1.5
_CHANGE_SIGMAS = 4.0
_PRIOR_TOKEN_SPREAD = 0.1
_NUM_PRIOR = 6  # as many rank-steps in proportion are believed before any is seen


def others_median(values: Mapping[str, float], rank: str) -> float:
    """Median over all ranks but this one."""
    return median(value for label, value in values.items() if label != rank)


def work(of: RankStep) -> float | None:
    return of.work_seconds


def busy(of: RankStep) -> float | None:
    return of.busy_seconds


class TokenWork(NamedTuple):
    """What more tokens of one kind explain: ``seconds`` of each excess."""

    words: str
    count_of: Count
    seconds: Table


class View(NamedTuple):
    """The excess in the steps where it is known; without what ``tokens`` explain, if there are any.

    ``sigmas`` by rank, see spreads.
    """

    table: Table
    sigmas: Mapping[str, float]
    tokens: TokenWork | None


def views(steps: Sequence[Step], columns: Columns) -> list[View]:
    """Of the wall time and of the processor time of the same work, as it is and at equal tokens.

    A thread's processor time leaves out when the host ran somebody else. Where a thread spins while
    it waits, it says nothing and accuses nobody: all ranks have the same.
    """
    columns.see(steps)
    found = []
    for measure in (work, busy):
        known = [step for step in steps if columns.is_known(step, measure)]
        if len(known) >= FIRST_WINDOW.num_steps:
            rows = [columns.excess(step, measure) for step in known]
            table = _by_rank(list(steps[-1].ranks), rows)
            found.append(View(table, spreads(table), None))
            found += _at_equal_tokens(known, measure, columns)
    return found


def _at_equal_tokens(steps: Sequence[Step], measure: Measure, columns: Columns) -> list[View]:
    """By the tokens that leave the ranks most alike; none where they are not known.

    Padding is worked on too: then a rank's longest sequence counts, and not its sum. The first
    forward passes of a job are not counted, so it may be the newest steps alone.
    """
    works = []
    for words, count in _COUNTS.items():
        known = [step for step in steps if columns.is_known(step, count)]
        if len(known) >= FIRST_WINDOW.num_steps and known[-1] is steps[-1]:
            works.append(_without_tokens(words, count, known, measure, columns))
    return sorted(works, key=lambda view: fmean(view.sigmas.values()))[:1]


def _without_tokens(
    words: str, count: Count, steps: Sequence[Step], measure: Measure, columns: Columns
) -> View:
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
    return View(without, spreads(without), TokenWork(words, count, _by_rank(ranks, table)))


def _elasticities(seconds: Sequence[Row], counts: Sequence[Row]) -> list[float]:
    """Work per token as the others show it, 0 (independent) to 1 (in proportion), for each rank.

    Where their tokens hardly differ, proportion is assumed.
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
    """Standard deviation of one step's excess, by rank, from differences of successive steps.

    A constant excess does not count, nor do stalls and warm-up. All ranks count as equally noisy,
    unless one is clearly noisier. Few differences are trusted less.
    """
    differences = {rank: [abs(b - a) for a, b in pairwise(row)] for rank, row in table.items()}
    pooled = [difference for row in differences.values() for difference in row]
    num = len(pooled) * (len(table) - 1) / len(table)
    of_all = _deviation(pooled)
    own = {
        rank: _deviation(row) if len(row) >= _MIN_OWN_DIFFERENCES else of_all
        for rank, row in differences.items()
    }
    return {
        rank: (sigma if sigma > _MUCH_NOISIER * of_all else of_all) * (1 + 4 / num)
        for rank, sigma in own.items()
    }


def _deviation(differences: Sequence[float]) -> float:
    kept = sorted(differences)[: max(1, ceil(_KEPT_SHARE * len(differences)))]
    return fmean(kept) / _KEPT_MEAN


def recurs(row: Sequence[float], window: Window, sigma: float, step_seconds: float) -> bool:
    """Whether the newest excesses of a rank, step after step, are large and no chance."""
    newest = row[-window.num_steps :]
    if len(newest) < window.num_steps:
        return False
    least = window.share * step_seconds
    if sum([excess >= least for excess in newest]) < window.num_hits:
        return False
    held = fmean(min(excess, MOST_SIGMAS * sigma) for excess in newest)
    return held * sqrt(len(newest)) >= window.sigmas * sigma


def reach_seconds(window: Window, sigma: float, step_seconds: float) -> float:
    """An excess that would have been seen, five times of six."""
    return max(window.share * step_seconds, (window.sigmas + 1) * sigma / sqrt(window.num_steps))


def num_alike(row: Sequence[float], sigma: float) -> int:
    """How many of the newest values lie on one level: what was before a change is left out.

    The split that takes most off the sum of squares, if that is more than chance would.
    """
    num_newest, most = len(row), (_CHANGE_SIGMAS * sigma) ** 2
    for num in range(FIRST_WINDOW.num_steps, len(row)):
        shift = fmean(row[-num:]) - fmean(row[:-num])
        gain = shift * shift * num * (len(row) - num) / len(row)
        if gain > most:
            num_newest, most = num, gain
    return num_newest


def middle_mean(values: Iterable[float]) -> float:
    """Mean of the middle 60 %: almost as exact as a mean, and no stall moves it far."""
    ordered = sorted(values)
    cut = len(ordered) // 5
    return fmean(ordered[cut : len(ordered) - cut])
