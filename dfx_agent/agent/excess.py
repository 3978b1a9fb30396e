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

from dfx_agent.agent.steps import RankStep, Step

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
_PRIOR_TOKEN_SPREAD = 0.1
_NUM_PRIOR = 6  # as many rank-steps in proportion are believed before any is seen


def others_median(values: Mapping[str, float], rank: str) -> float:
    """Median over all ranks but this one."""
    return median(value for label, value in values.items() if label != rank)


def excess_table(steps: Sequence[Step]) -> dict[str, list[float]]:
    """Work of each rank beyond the median of the others."""
    table: dict[str, list[float]] = {rank: [] for rank in steps[-1].ranks}
    for step in steps:
        work = {rank: of.work_seconds for rank, of in step.ranks.items()}
        for rank, excess in table.items():
            excess.append(work[rank] - others_median(work, rank))
    return table


class TokenWork(NamedTuple):
    """What more tokens of one kind explain: ``seconds`` of each excess; ``rest`` is without it."""

    words: str
    count_of: Count
    seconds: Table
    rest: Table


def token_work(steps: Sequence[Step], excess: Table) -> TokenWork | None:
    """By the tokens that leave the ranks most alike; None where they are not known.

    Padding is worked on too: then a rank's longest sequence counts, and not its sum.
    """
    works = [_token_work(words, count, steps, excess) for words, count in _COUNTS.items()]
    known = [work for work in works if work is not None]
    return min(known, key=lambda work: fmean(spreads(work.rest).values()), default=None)


def _token_work(words: str, count: Count, steps: Sequence[Step], excess: Table) -> TokenWork | None:
    if any(not count(of) for step in steps for of in step.ranks.values()):
        return None
    shares = [_shares(step, count) for step in steps]
    table: dict[str, list[float]] = {}
    for rank in steps[-1].ranks:
        elasticity = _elasticity([share for step in shares for share in step if share[0] != rank])
        table[rank] = [elasticity * _token_seconds(step, rank, count) for step in steps]
    rest = {
        rank: [whole - part for whole, part in zip(row, table[rank], strict=True)]
        for rank, row in excess.items()
    }
    return TokenWork(words, count, table, rest)


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
    least = window.share * step_seconds
    held = fmean(min(excess, MOST_SIGMAS * sigma) for excess in newest)
    return (
        sum(excess >= least for excess in newest) >= window.num_hits
        and held * sqrt(len(newest)) >= window.sigmas * sigma
    )


def reach_seconds(window: Window, sigma: float, step_seconds: float) -> float:
    """An excess that would have been seen, five times of six."""
    return max(window.share * step_seconds, (window.sigmas + 1) * sigma / sqrt(window.num_steps))


def middle_mean(values: Iterable[float]) -> float:
    """Mean of the middle 60 %: almost as exact as a mean, and no stall moves it far."""
    ordered = sorted(values)
    cut = len(ordered) // 5
    return fmean(ordered[cut : len(ordered) - cut])


def _shares(step: Step, count: Count) -> list[tuple[str, float, float]]:
    """(rank, tokens, work) of each rank against the median of the step, 0 being the same."""
    tokens = median(count(of) for of in step.ranks.values())
    work = median(of.work_seconds for of in step.ranks.values())
    return [
        (rank, count(of) / tokens - 1, of.work_seconds / work - 1 if work else 0.0)
        for rank, of in step.ranks.items()
    ]


def _elasticity(shares: Sequence[tuple[str, float, float]]) -> float:
    """Work per token as the others show it, 0 (independent) to 1 (in proportion).

    Where their tokens hardly differ, proportion is assumed.
    """
    prior = _PRIOR_TOKEN_SPREAD**2 * _NUM_PRIOR
    products = sum(tokens * work for _, tokens, work in shares) + prior
    squares = sum(tokens * tokens for _, tokens, _ in shares) + prior
    return min(1.0, max(0.0, products / squares))


def _token_seconds(step: Step, rank: str, count: Count) -> float:
    """Work beyond the others' if all work were in proportion to tokens."""
    tokens = others_median({label: count(of) for label, of in step.ranks.items()}, rank)
    work = others_median({label: of.work_seconds for label, of in step.ranks.items()}, rank)
    return work * (count(step.ranks[rank]) / tokens - 1)
