"""Merges the steps of one role from all nodes of a job and decides when a step is complete.

A step is complete, and is judged, when every living rank of the role has passed it. An incomplete
step is shown when a living rank is two steps ahead, or when no living rank can still report it.
Its row lists the ranks that are still in the step as missing. Their late reports are added to it.

Clocks of two nodes are not exact enough to see which rank arrives last, so durations decide. No
rank leaves a collective before the last rank arrives. The rank with the shortest time in the
collectives of a group therefore arrived last, and its time counts as transfer. A node reports
only sums by group: the difference between two ranks is exact, the transfer time is an upper bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dfx_agent.facts.short_steps import ShortSteps
from dfx_agent.facts.steps import MAX_OPEN_STEPS, SUPERSEDED_BY, TRANSFER, RankStep, Step
from dfx_agent.hub.clocks import Shift
from dfx_agent.job.step_rows import step_row, with_late, without
from dfx_agent.snapshot import StepRow

_KEEP_STEPS = 32
_KEEP_CHECKPOINTS = 200
# the number of rows depends on the number of ranks: at most 4096 cells, but 8 to 200 rows
_KEEP_CELLS, _FEWEST_ROWS, _MOST_ROWS = 4096, 8, 200
_PACE_ROWS = 16  # used to estimate the duration of a step


@dataclass
class _Open:
    """A step that some ranks have not passed. ``num_lost``: lost records by node."""

    begin_seconds: float
    end_seconds: float
    ranks: dict[str, RankStep] = field(default_factory=dict)
    num_lost: dict[str, int] = field(default_factory=dict)
    num_shown: int = 0  # ranks in the row that is shown

    def add(self, node: str, step: Step, ranks: Mapping[str, RankStep]) -> None:
        self.begin_seconds = min(self.begin_seconds, step.begin_seconds)
        self.end_seconds = max(self.end_seconds, step.end_seconds)
        self.ranks |= ranks
        self.num_lost[node] = step.num_lost

    def is_left(self, number: int, living: Mapping[str, int | None]) -> bool:
        """Whether every living rank has reported this step or is in a later one."""
        return all(label in self.ranks or (step or 0) > number for label, step in living.items())


class JobSteps:
    """Steps of one role. Call ``add``, then ``close``; ``steps`` are the latest complete steps."""

    def __init__(self, role: str) -> None:
        self.steps: deque[Step] = deque(maxlen=_KEEP_STEPS)
        self.checkpoints: deque[int] = deque(maxlen=_KEEP_CHECKPOINTS)
        self._role = role
        self._rows: dict[int, StepRow] = {}
        self._short = ShortSteps()
        self._open: dict[int, _Open] = {}
        self._latest: dict[str, tuple[int, float]] = {}  # node -> (latest step, start time)

    def restart(self) -> None:
        """Drop all steps that are not shown: a rank was restarted, so every rank starts again."""
        self._open.clear()
        self.steps.clear()
        self._short.clear()
        self._latest.clear()

    def add(self, node: str, reported: Step, shift: Shift, label: Callable[[str], str]) -> None:
        """Add a step of a node; ignore a repeated report. ``label`` maps local to job labels."""
        number, before = reported.step, self._latest.get(node)
        is_next = before is None or number > before[0]
        is_new = is_next or (before is not None and reported.begin_seconds > before[1])
        step = shift.step(reported)
        ranks = {label(rank): rank_step for rank, rank_step in step.ranks.items()}
        open_step = self._open.get(number)
        if is_next or (is_new and open_step is None):
            self._latest[node] = number, reported.begin_seconds
        if open_step is None:
            if not is_new:
                if number in self._rows:  # for example from a rank that died in this step
                    row = with_late(self._rows[number], ranks, step.end_seconds)
                    self._rows[number] = row
                return
            open_step = self._open[number] = _Open(step.begin_seconds, step.end_seconds)
        open_step.add(node, step, ranks)

    @property
    def has_open_steps(self) -> bool:
        """Whether ``close`` has anything to do."""
        return bool(self._open)

    def close(self, living: Mapping[str, int | None], ended: Mapping[str, int | None]) -> None:
        """Close the complete steps. Both arguments: label -> the step that this rank is in.

        If no rank is alive, a step is complete when all ended ranks have reported it.
        """
        latest = max((step for step in living.values() if step is not None), default=-1)
        for number, open_step in sorted(self._open.items()):
            is_complete = all(label in open_step.ranks for label in living or ended)
            if is_complete and (living or ended):
                self._take(number, self._open.pop(number))
            is_superseded = latest >= number + SUPERSEDED_BY
            if is_complete or is_superseded or open_step.is_left(number, living):
                self._show(number, open_step, {**living, **ended})
        for number in sorted(self._open)[:-MAX_OPEN_STEPS]:
            del self._open[number]

    def remove(self, label: str) -> None:
        """Drop a rank whose process ended long ago from all steps."""
        for open_step in self._open.values():
            open_step.ranks.pop(label, None)
        self._open = {
            number: open_step for number, open_step in self._open.items() if open_step.ranks
        }
        rows = {number: without(row, label) for number, row in self._rows.items()}
        self._rows = {number: row for number, row in rows.items() if row is not None}

    def rows(self, num_steps: int = _MOST_ROWS) -> list[StepRow]:
        """Rows of the latest shown steps, oldest first."""
        return sorted(self._rows.values(), key=lambda row: row.begin_seconds)[-num_steps:]

    def spans(self) -> list[tuple[float, float]]:
        """(begin, end) in Unix seconds of the latest shown steps, to estimate the step time."""
        return [(row.begin_seconds, row.end_seconds) for row in self.rows(_PACE_ROWS)]

    def _take(self, number: int, open_step: _Open) -> None:
        step = _closed(number, open_step)
        if any(("stage", "checkpoint") in rank_step.parts for rank_step in step.ranks.values()):
            self.checkpoints.append(number)
        open_step.ranks = dict(step.ranks)
        merged = self._short.take(step)
        self.steps += [merged] if merged is not None else []

    def _show(self, number: int, open_step: _Open, reached: Mapping[str, int | None]) -> None:
        if open_step.num_shown == len(open_step.ranks):
            return
        open_step.num_shown = len(open_step.ranks)
        missing = [
            label
            for label, step in reached.items()
            if step == number and label not in open_step.ranks
        ]
        span = open_step.begin_seconds, open_step.end_seconds
        self._rows.pop(number, None)
        self._rows[number] = step_row(self._role, number, span, open_step.ranks, missing)
        num_rows = max(_FEWEST_ROWS, min(_MOST_ROWS, _KEEP_CELLS // len(open_step.ranks)))
        for old in list(self._rows)[:-num_rows]:
            del self._rows[old]


def latest_rows(roles: Iterable[JobSteps], num_steps: int) -> tuple[StepRow, ...]:
    """The latest ``num_steps`` shown steps of every role, sorted by start time."""
    rows = [row for steps in roles for row in steps.rows(num_steps)]
    return tuple(sorted(rows, key=lambda row: row.begin_seconds))


def _closed(number: int, open_step: _Open) -> Step:
    ranks = dict(sorted(open_step.ranks.items(), key=lambda item: (len(item[0]), item[0])))
    if len(open_step.num_lost) > 1:
        ranks = by_duration(ranks)
    return Step(
        number, open_step.begin_seconds, sum(open_step.num_lost.values()), ranks,
        last_end_seconds=open_step.end_seconds,
    )  # fmt: skip


def by_duration(ranks: Mapping[str, RankStep]) -> dict[str, RankStep]:
    """The same ranks of a step, with their time in collectives split into waiting and transfer."""
    shortest = _shortest(ranks)
    return {label: _split(rank_step, shortest) for label, rank_step in ranks.items()}


def _shortest(ranks: Mapping[str, RankStep]) -> dict[str, float]:
    """Group -> shortest time of a rank in it; without groups whose ranks cannot be matched."""
    members: dict[str, list[RankStep]] = {}
    for rank_step in ranks.values():
        for group in rank_step.groups:
            members.setdefault(group, []).append(rank_step)
    return {
        group: min(rank_step.groups[group].blocked_seconds for rank_step in rank_steps)
        for group, rank_steps in members.items()
        if len(rank_steps) > 1
        and len({rank_step.groups[group][:2] for rank_step in rank_steps}) == 1
    }


def _split(rank_step: RankStep, shortest: Mapping[str, float]) -> RankStep:
    blocked = rank_step.waited_seconds + rank_step.parts.get(TRANSFER, 0.0)
    transfer = min(blocked, sum(shortest.get(group, 0.0) for group in rank_step.groups))
    parts = {**rank_step.parts, TRANSFER: transfer}
    return replace(rank_step, waited_seconds=round(blocked - transfer, 9), parts=parts)
