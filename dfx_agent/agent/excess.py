"""How much more each rank worked than the others, how steadily, and how much of it is tokens.

Robust on purpose: medians over the other ranks and over steps, so that one stall of one rank moves
nothing. Table of seconds: rank -> one value per step, oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import median

from dfx_agent.agent.steps import RankStep, Step

Table = Mapping[str, Sequence[float]]

# steps looked at -> steps that must show it, and beyond how many sigmas: less than once in 10^6 by
# chance, outliers included (binomial; checked against healthy simulations in test_attribution)
RECURRENCE = {3: (3, 3.5), 5: (4, 2.6), 10: (8, 1.7), 20: (16, 1.0)}
_STILL_STEPS, _MIN_STILL_HITS = 5, 3
_SIGMAS_OF_MAD = 1.4826
_MIN_OWN_DIFFERENCES = 8
_PRIOR_TOKEN_SPREAD = 0.1


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


def token_table(steps: Sequence[Step]) -> dict[str, list[float]] | None:
    """The part of each excess that more tokens explain; None where tokens were not told."""
    if any(not of.num_tokens for step in steps for of in step.ranks.values()):
        return None
    shares = [_shares(step) for step in steps]
    table: dict[str, list[float]] = {}
    for rank in steps[-1].ranks:
        elasticity = _elasticity([share for step in shares for share in step if share[0] != rank])
        table[rank] = [elasticity * _token_seconds(step, rank) for step in steps]
    return table


def spread(table: Table, rank: str) -> float:
    """Standard deviation of one step's excess, from differences of successive steps.

    A constant excess does not count, nor does a single stall. Few differences are trusted less.
    """
    differences = {label: [abs(b - a) for a, b in pairwise(row)] for label, row in table.items()}
    pooled = [difference for row in differences.values() for difference in row]
    num = len(pooled) * (len(table) - 1) / len(table)
    middle = median(pooled)
    if len(differences[rank]) >= _MIN_OWN_DIFFERENCES:
        middle = max(middle, median(differences[rank]))
    return _SIGMAS_OF_MAD * middle / sqrt(2) * (1 + 4 / num)


def gate_seconds(num_steps: int, sigma: float, floor_seconds: float) -> float:
    """What an excess must reach in the required share of the steps looked at."""
    return max(floor_seconds, RECURRENCE[num_steps][1] * sigma)


def recurs(row: Sequence[float], num_steps: int, gate_seconds: float) -> bool:
    """Whether an excess reaches the gate in enough of the newest steps, and still does."""
    hits = [excess >= gate_seconds for excess in row[-num_steps:]]
    return (
        len(row) >= num_steps
        and sum(hits) >= RECURRENCE[num_steps][0]
        and sum(hits[-_STILL_STEPS:]) >= _MIN_STILL_HITS
    )


def _shares(step: Step) -> list[tuple[str, float, float]]:
    """(rank, tokens, work) of each rank against the median of the step, 0 being the same."""
    tokens = median(of.num_tokens or 0.0 for of in step.ranks.values())
    work = median(of.work_seconds for of in step.ranks.values())
    return [
        (rank, (of.num_tokens or 0.0) / tokens - 1, of.work_seconds / work - 1 if work else 0.0)
        for rank, of in step.ranks.items()
    ]


def _elasticity(shares: Sequence[tuple[str, float, float]]) -> float:
    """Work per token as the others show it, 0 (independent) to 1 (in proportion).

    Where their tokens hardly differ, proportion is assumed.
    """
    prior = _PRIOR_TOKEN_SPREAD**2 * len(shares)
    products = sum(tokens * work for _, tokens, work in shares) + prior
    squares = sum(tokens * tokens for _, tokens, _ in shares) + prior
    return min(1.0, max(0.0, products / squares))


def _token_seconds(step: Step, rank: str) -> float:
    """Work beyond the others' if all work were in proportion to tokens."""
    of: Mapping[str, RankStep] = step.ranks
    tokens = others_median({label: of[label].num_tokens or 0.0 for label in of}, rank)
    work = others_median({label: of[label].work_seconds for label in of}, rank)
    return work * ((of[rank].num_tokens or 0.0) / tokens - 1)
