"""Selects the steps, or the time between two polls, for a breakdown.

A job may repeat a cycle of unequal steps: one long rollout, then many short minibatch updates. Each
optimizer step counts as a step, so the window must cover whole cycles.

The agent retains only the latest closed steps. If steps last milliseconds, these cover less than
one cycle of the job. Then running totals are used, which cover any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from dfx_agent.judge.bottleneck.pipeline_facts import ProcessTime
from dfx_agent.judge.bottleneck.step_shares import aside_seconds
from dfx_agent.snapshot import StepRow, TimeSplit

LEAST_SECONDS = 10.0
_MOST_SECONDS = 120.0
_POLL_SECONDS = 2.0
LEAST_STEPS = 3
_ENOUGH_STEPS = 5
_LEAST_SECONDS, _LONG_SECONDS = 8.0, 20.0
_LONG_RATIO = 5.0  # times the median; a longer step begins a cycle, or the job was stuck
_SIMILAR_RATIO = 0.3  # long steps of a cycle have at least this share of their median
_MARKED_RATIO = 0.5
_ASIDE_RATIO = 0.2
_NUM_CYCLES = 4


class SelectedSteps(NamedTuple):
    """The steps that a verdict is based on."""

    rows: Sequence[StepRow]
    left_out: Sequence[StepRow]
    """Steps between ``rows`` that are not typical: checkpoints, or unusually long."""
    num_steps: int
    """Optimizer steps in ``rows``; more than rows if short steps are merged."""
    is_uneven: bool = False
    """Whether the window consists of cycles of unequal steps."""


def select(rows: Sequence[StepRow], *, has_cycles: bool = True) -> SelectedSteps:
    """The latest steps: whole cycles if long steps recur, otherwise at least 8 s of steps.

    ``has_cycles``: if False, long steps are never part of a cycle, as in a pipeline that was stuck.
    """
    long_seconds = _LONG_RATIO * median(map(seconds_of, rows)) if rows else 0.0
    cycle_ends = _cycle_ends(rows, long_seconds) if has_cycles else []
    selected: list[StepRow] = []
    left_out: list[StepRow] = []
    first = cycle_ends[0] + 1 if cycle_ends else 0
    last = cycle_ends[-1] + 1 if cycle_ends else len(rows)
    total = 0.0
    for row in reversed(rows[first:last]):
        if not cycle_ends and _is_enough(len(selected), total):
            break
        is_left_out = is_aside(row) or (
            not cycle_ends
            and seconds_of(row) > long_seconds
            and not (has_cycles and _is_marked(row))
        )
        (left_out if is_left_out else selected).insert(0, row)
        total += 0.0 if is_left_out else seconds_of(row)
    num_steps = _num_steps(rows, selected, left_out)
    return SelectedSteps(selected, left_out, num_steps, bool(cycle_ends))


def _cycle_ends(rows: Sequence[StepRow], long_seconds: float) -> list[int]:
    """Indices of the latest long steps, which end the cycles; [] if long steps do not recur."""
    usual = [index for index, row in enumerate(rows) if not is_aside(row)]
    long = [index for index in usual if seconds_of(rows[index]) >= long_seconds]
    if len(long) < 2:
        return []
    least = _SIMILAR_RATIO * median(seconds_of(rows[index]) for index in long)
    ends = [index for index in long if seconds_of(rows[index]) >= least]
    return ends[-_NUM_CYCLES - 1 :] if len(ends) > 1 else []


def _is_enough(num_steps: int, seconds: float) -> bool:
    is_many = num_steps >= _ENOUGH_STEPS or seconds >= _LONG_SECONDS
    return num_steps >= LEAST_STEPS and seconds >= _LEAST_SECONDS and is_many


def _is_marked(row: StepRow) -> bool:
    """Whether most of the step is inside stages, so that the job was not stuck."""
    wall = sum(cell.split.wall_seconds for cell in row.cells)
    stages = sum(min(cell.split.active_seconds, _stage_seconds(cell.split)) for cell in row.cells)
    return stages >= _MARKED_RATIO * wall


def _stage_seconds(split: TimeSplit) -> float:
    return sum(split.stage_seconds.values())


def _num_steps(
    rows: Sequence[StepRow], selected: Sequence[StepRow], left_out: Sequence[StepRow]
) -> int:
    """Optimizer steps in a window, by step numbers if the step before the window is known."""
    if not selected:
        return 0
    window = sorted([*selected, *left_out], key=lambda row: row.begin_seconds)
    before = [row for row in rows if row.begin_seconds < window[0].begin_seconds]
    if not before:
        return len(selected)
    return max(len(selected), window[-1].step - before[-1].step - len(left_out))


def seconds_of(row: StepRow) -> float:
    """Duration of a step, from its first begin to its last end."""
    return row.end_seconds - row.begin_seconds


def is_aside(row: StepRow) -> bool:
    """Whether a fifth of the step is a checkpoint or a validation."""
    return aside_seconds(row) > _ASIDE_RATIO * seconds_of(row)


class _Poll(NamedTuple):
    at_seconds: float
    step: int
    totals: Mapping[tuple[str, int], TimeSplit]  # by rank and pid


class TotalsWindow(NamedTuple):
    """Running totals over a number of steps."""

    splits: tuple[TimeSplit, ...]
    """One for each rank."""
    num_steps: int
    first_step: int


class TotalsHistory:
    """Running totals of the training role at polls of the last two minutes."""

    def __init__(self) -> None:
        self._polls: deque[_Poll] = deque()

    def add(self, now_seconds: float, step: int, processes: Iterable[ProcessTime]) -> None:
        """Add a poll of live ranks; at most one in two seconds is stored."""
        polls = self._polls
        if polls and now_seconds - polls[-1].at_seconds < _POLL_SECONDS:
            return
        totals = {
            (process.rank, process.pid): process.totals
            for process in processes
            if process.totals.wall_seconds > 0
        }
        if not totals:
            return
        if polls and not polls[-1].totals.keys() & totals.keys():
            polls.clear()  # all ranks were restarted
        polls.append(_Poll(now_seconds, step, totals))
        while now_seconds - polls[0].at_seconds > _MOST_SECONDS:
            polls.popleft()

    def window(self) -> TotalsWindow | None:
        """Totals of the covered time; None before one rank has totals over 10 s."""
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
