"""Estimates the step at which a run began to diverge, when the alert begins.

The onset is the common change point of all signals that moved. The first drift of one signal is not
used, because signals drift a little all the time.

Model: the distance z of a row from the baseline is N(0, 1) before the onset and N(m, 1) after it.
All signals have the same onset. m is the level of a signal in its latest rows. The log-likelihood
ratio of an onset at row t is the sum of m z - m^2 / 2 over all signals and all rows since t (Page
1954). The range contains all onsets within 1.92 of the best (half the 95 % point of chi-square with
one degree of freedom).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile

from dfx_agent.snapshot import OnsetRange

# (step, distance in the direction in which the signal moved), oldest first
History = Sequence[tuple[int, float]]

# one row far beyond everything must not outweigh all others
MOST_Z = 10.0
# after so many calm rows of all signals, an earlier event has ended
CALM_ROWS = 8
CALM_Z = 2.0
# an alert needs a move within so many rows
LATEST_ROWS = 10
LEVEL_ROWS = 3
RANGE = 1.92
# these are measured in the update itself; what it does to the samples is seen in later rows
UPDATE_KLS = frozenset({"policy_kl", "policy_kl_k2"})
UPDATE_Z = 4.0


def find_onset(histories: Iterable[History], from_step: int | None = None) -> OnsetRange | None:
    """The onset and its range, not before ``from_step``. None if no signal has moved."""
    moved = [[(step, min(MOST_Z, max(-MOST_Z, z))) for step, z in history] for history in histories]
    steps = sorted({step for history in moved for step, _ in history})
    begin = _begin(moved, steps) if from_step is None else from_step
    scores = dict.fromkeys((step for step in reversed(steps) if step >= begin), 0.0)
    for history in moved:
        mean = _latest_mean([z for _, z in history])
        z_by_step = dict(history)
        total = 0.0
        for step in scores:  # latest first
            z = z_by_step.get(step)
            total += 0.0 if z is None else mean * z - mean * mean / 2
            scores[step] += total
    best = max(scores, key=lambda step: scores[step], default=0)
    if scores.get(best, 0.0) <= 0:
        return None
    likely = [step for step, score in scores.items() if score >= scores[best] - RANGE]
    return OnsetRange(best, min(likely), max(likely))


def update_before(onset_step: int, histories: Iterable[History]) -> int | None:
    """The first of the steps with a far update that end in the row before the onset, or in it.

    None if no KL of an update was far there.
    """
    firsts = []
    for history in histories:
        rows = [row for row in history if row[0] <= onset_step]
        if rows and rows[-1][1] < UPDATE_Z:
            rows.pop()
        far = list(takewhile(lambda row: row[1] >= UPDATE_Z, reversed(rows)))
        firsts += [step for step, _ in far[-1:]]
    return min(firsts, default=None)


def _latest_mean(zs: Sequence[float]) -> float:
    """The highest mean of the last 3 to 10 rows, at least 0."""
    latest = list(reversed(zs[-LATEST_ROWS:]))
    totals = list(accumulate(latest))
    means = [total / num for num, total in enumerate(totals, start=1) if num >= LEVEL_ROWS]
    return max(0.0, *means) if means else max(0.0, *latest, 0.0)


def _begin(moved: list[list[tuple[int, float]]], steps: list[int]) -> int:
    """The step after the last 8 calm rows of all signals. The last 10 rows are not considered."""
    worst: dict[int, float] = {}
    for history in moved:
        for step, z in history:
            worst[step] = max(z, worst.get(step, z))
    num_calm = 0
    for index in range(len(steps) - LATEST_ROWS - 1, -1, -1):
        num_calm = num_calm + 1 if worst[steps[index]] <= CALM_Z else 0
        if num_calm == CALM_ROWS:
            return steps[index + CALM_ROWS]
    return steps[0] if steps else 0
