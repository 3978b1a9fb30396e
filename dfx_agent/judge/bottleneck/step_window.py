"""Selects the closed steps, or the time between two polls, that a breakdown is made of.

A job may repeat a cycle of unequal steps: one long rollout, then many short minibatch updates. Each
optimizer step counts as a step, so the window must cover whole cycles.

The agent retains only the newest closed steps. Where steps last milliseconds, these cover less than
one cycle of the job (a rollout, then hundreds of minibatch updates); running totals cover any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from dfx_agent.facts.pipeline import ProcessTime
from dfx_agent.judge.bottleneck.step_shares import aside_seconds
from dfx_agent.snapshot import StepRow, TimeSplit

LEAST_SECONDS = 10.0
_MOST_SECONDS = 120.0
_POLL_SECONDS = 2.0
LEAST_STEPS = 3
_ENOUGH_STEPS = 5
_LEAST_SECONDS, _LONG_SECONDS = 8.0, 20.0
_LONG_RATIO = 5.0  # times the median: the long step of a cycle, or a standstill
_ALIKE_RATIO = 0.3  # a long step that comes again has at least this share of the usual one
_MARKED_RATIO = 0.5
_ASIDE_RATIO = 0.2
_NUM_CYCLES = 4


class StepWindow(NamedTuple):
    """``rows`` are judged; ``left_out`` are the steps between them that say nothing of the job.

    ``num_steps``: optimizer steps in ``rows``, more than rows where short steps are taken together.
    """

    rows: Sequence[StepRow]
    left_out: Sequence[StepRow]
    num_steps: int
    is_uneven: bool = False


def select(rows: Sequence[StepRow], *, has_cycles: bool = True) -> StepWindow:
    """The newest steps: whole cycles where long steps return, else at least 8 s of steps.

    ``has_cycles`` False: a long step is a standstill, as in a pipeline that waits once.
    """
    long_seconds = _LONG_RATIO * median(map(seconds_of, rows)) if rows else 0.0
    cycle_ends = _cycle_ends(rows, long_seconds) if has_cycles else []
    newest: list[StepRow] = []
    left_out: list[StepRow] = []
    first = cycle_ends[0] + 1 if cycle_ends else 0
    last = cycle_ends[-1] + 1 if cycle_ends else len(rows)
    total = 0.0
    for row in reversed(rows[first:last]):
        if not cycle_ends and _is_enough(len(newest), total):
            break
        is_left_out = is_aside(row) or (
            not cycle_ends
            and seconds_of(row) > long_seconds
            and not (has_cycles and _is_marked(row))
        )
        (left_out if is_left_out else newest).insert(0, row)
        total += 0.0 if is_left_out else seconds_of(row)
    return StepWindow(newest, left_out, _num_steps(rows, newest, left_out), bool(cycle_ends))


def _cycle_ends(rows: Sequence[StepRow], long_seconds: float) -> list[int]:
    """Positions of the newest long steps if they return: a cycle ends with each. Else empty."""
    known = [at for at, row in enumerate(rows) if not is_aside(row)]
    long = [at for at in known if seconds_of(rows[at]) >= long_seconds]
    if len(long) < 2:
        return []
    least = _ALIKE_RATIO * median(seconds_of(rows[at]) for at in long)
    ends = [at for at in long if seconds_of(rows[at]) >= least]
    return ends[-_NUM_CYCLES - 1 :] if len(ends) > 1 else []


def _is_enough(num_steps: int, seconds: float) -> bool:
    is_many = num_steps >= _ENOUGH_STEPS or seconds >= _LONG_SECONDS
    return num_steps >= LEAST_STEPS and seconds >= _LEAST_SECONDS and is_many


def _is_marked(row: StepRow) -> bool:
    """Whether most of the step is inside stages: the job worked, it did not stand still."""
    wall = sum(cell.split.wall_seconds for cell in row.cells)
    stages = sum(min(c.split.active_seconds, _stage_seconds(c.split)) for c in row.cells)
    return stages >= _MARKED_RATIO * wall


def _stage_seconds(split: TimeSplit) -> float:
    return sum(split.stage_seconds.values())


def _num_steps(
    rows: Sequence[StepRow], newest: Sequence[StepRow], left_out: Sequence[StepRow]
) -> int:
    """By the numbers of the steps, where the step before the window is known."""
    if not newest:
        return 0
    window = sorted([*newest, *left_out], key=lambda row: row.begin_seconds)
    before = [row for row in rows if row.begin_seconds < window[0].begin_seconds]
    if not before:
        return len(newest)
    return max(len(newest), window[-1].step - before[-1].step - len(left_out))


def seconds_of(row: StepRow) -> float:
    """From its first begin to its last end."""
    return row.end_seconds - row.begin_seconds


def is_aside(row: StepRow) -> bool:
    """Whether a fifth of the step is a checkpoint or a validation."""
    return aside_seconds(row) > _ASIDE_RATIO * seconds_of(row)


class _Poll(NamedTuple):
    at_seconds: float
    step: int
    totals: Mapping[tuple[str, int], TimeSplit]  # by rank and pid


class TotalsWindow(NamedTuple):
    """``splits``: one for each rank, over ``num_steps`` steps, the first of them ``first_step``."""

    splits: tuple[TimeSplit, ...]
    num_steps: int
    first_step: int


class TotalsHistory:
    """Totals of the role that trains, at polls of the last two minutes."""

    def __init__(self) -> None:
        self._polls: deque[_Poll] = deque()

    def add(self, now_seconds: float, step: int, processes: Iterable[ProcessTime]) -> None:
        """Called when steps have closed; one poll in two seconds is retained."""
        polls = self._polls
        if polls and now_seconds - polls[-1].at_seconds < _POLL_SECONDS:
            return
        totals = {(p.rank, p.pid): p.totals for p in processes if p.totals.wall_seconds > 0}
        polls.append(_Poll(now_seconds, step, totals))
        while now_seconds - polls[0].at_seconds > _MOST_SECONDS:
            polls.popleft()

    def window(self) -> TotalsWindow | None:
        """None before 10 s of totals of one rank are known."""
        if not self._polls:
            return None
        first, last = self._polls[0], self._polls[-1]
        shared = first.totals.keys() & last.totals.keys()
        num_steps = last.step - first.step
        if last.at_seconds - first.at_seconds < LEAST_SECONDS or not shared or num_steps <= 0:
            return None
        splits = tuple(_difference(first.totals[key], last.totals[key]) for key in sorted(shared))
        return TotalsWindow(splits, num_steps, first.step + 1)

    @property
    def seconds(self) -> float:
        """How much time the polls cover."""
        return self._polls[-1].at_seconds - self._polls[0].at_seconds if self._polls else 0.0


def _difference(first: TimeSplit, last: TimeSplit) -> TimeSplit:
    return TimeSplit(
        last.wall_seconds - first.wall_seconds,
        last.active_seconds - first.active_seconds,
        last.idle_seconds - first.idle_seconds,
        _less(last.stage_seconds, first.stage_seconds),
        {
            kind: _less(by_stage, first.wait_seconds.get(kind, {}))
            for kind, by_stage in last.wait_seconds.items()
        },
    )


def _less(last: Mapping[str, float], first: Mapping[str, float]) -> dict[str, float]:
    return {name: max(0.0, seconds - first.get(name, 0.0)) for name, seconds in last.items()}
