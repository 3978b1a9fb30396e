"""Since when a run diverges: the change point of all signals that moved, estimated at the page.

The first drift of the first signal is not it: signals drift a little all the time. Each row's
distance from its baseline is N(0, 1) before the onset and N(m, 1) after it. The onset is common; m
is each signal's own, its level in the newest rows, since that is how far it has moved. The
logarithm of the likelihood ratio of an onset at row t is then the sum over signals and rows since t
of m z - m^2 / 2 (Page 1954). Onsets within 1.92 of the best, half the 95 % point of chi-square with
one degree of freedom, are the range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from dfx_agent.snapshot import OnsetRange

# step and distance in the direction in which the signal moved, oldest first
History = Sequence[tuple[int, float]]

# one row far beyond everything must not outweigh all others
MOST_Z = 10.0
# where all signals were calm for so many rows something earlier had ended
CALM_ROWS = 8
CALM_Z = 2.0
# a page needs a move within so many rows
LATEST_ROWS = 10
LEVEL_ROWS = 3
RANGE = 1.92


def find_onset(histories: Iterable[History], from_step: int | None = None) -> OnsetRange | None:
    """Not before ``from_step``; None where no signal is off in its direction."""
    moved = [[(step, min(MOST_Z, max(-MOST_Z, z))) for step, z in history] for history in histories]
    steps = sorted({step for history in moved for step, _ in history})
    begin = _begin(moved, steps) if from_step is None else from_step
    scores = dict.fromkeys((step for step in reversed(steps) if step >= begin), 0.0)
    for history in moved:
        mean = _newest_mean([z for _, z in history])
        of_step = dict(history)
        total = 0.0
        for step in scores:  # newest first
            z = of_step.get(step)
            total += 0.0 if z is None else mean * z - mean * mean / 2
            scores[step] += total
    best = max(scores, key=lambda step: scores[step], default=0)
    if scores.get(best, 0.0) <= 0:
        return None
    likely = [step for step, score in scores.items() if score >= scores[best] - RANGE]
    return OnsetRange(best, min(likely), max(likely))


def _newest_mean(zs: Sequence[float]) -> float:
    """The highest mean of the newest 3 to 10 rows; 0 where none is above 0."""
    newest = list(reversed(zs[-LATEST_ROWS:]))
    totals = list(accumulate(newest))
    means = [total / num for num, total in enumerate(totals, start=1) if num >= LEVEL_ROWS]
    return max(0.0, *means) if means else max(0.0, *newest, 0.0)


def _begin(moved: list[list[tuple[int, float]]], steps: list[int]) -> int:
    """The step after the newest stretch in which all signals were calm, the newest rows aside."""
    worst: dict[int, float] = {}
    for history in moved:
        for step, z in history:
            worst[step] = max(z, worst.get(step, z))
    num_calm = 0
    for place in range(len(steps) - LATEST_ROWS - 1, -1, -1):
        num_calm = num_calm + 1 if worst[steps[place]] <= CALM_Z else 0
        if num_calm == CALM_ROWS:
            return steps[place + CALM_ROWS]
    return steps[0] if steps else 0
