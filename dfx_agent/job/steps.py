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

    def __init__(self, role: str = "") -> None:
        self.steps: deque[Step] = deque(maxlen=_KEEP_STEPS)
        self.checkpoints: deque[int] = deque(maxlen=_KEEP_CHECKPOINTS)
        self._role = role
        self._rows: dict[int, StepRow] = {}
        self._short = ShortSteps()
        self._open: dict[int, _Open] = {}
        self._newest: dict[str, tuple[int, float]] = {}  # node -> (latest step, start time)

    def begin_anew(self) -> None:
        """Drop all steps that are not shown: a rank was restarted, so every rank starts again."""
        self._open.clear()
        self.steps.clear()
        self._short.clear()
        self._newest.clear()

    def add(self, node: str, told: Step, shift: Shift, label: Callable[[str], str]) -> None:
        """Add a step of a node; ignore a repeated report. ``label`` maps local to job labels."""
        number, before = told.step, self._newest.get(node)
        is_next = before is None or number > before[0]
        is_new = is_next or (before is not None and told.begin_seconds > before[1])
        step = shift.step(told)
        ranks = {label(rank): of for rank, of in step.ranks.items()}
        known = self._open.get(number)
        if is_next or (is_new and known is None):
            self._newest[node] = number, told.begin_seconds
        if known is None:
            if not is_new:
                if number in self._rows:  # for example from a rank that died in this step
                    row = with_late(self._rows[number], ranks, step.end_seconds)
                    self._rows[number] = row
                return
            known = self._open[number] = _Open(step.begin_seconds, step.end_seconds)
        known.add(node, step, ranks)

    def close(self, living: Mapping[str, int | None], ended: Mapping[str, int | None]) -> None:
        """Close the complete steps. Both arguments: label -> the step that this rank is in.

        If no rank is alive, a step is complete when all ended ranks have reported it.
        """
        if not self._open:
            return
        newest = max((step for step in living.values() if step is not None), default=-1)
        for number, known in sorted(self._open.items()):
            is_complete = all(label in known.ranks for label in living or ended)
            if is_complete and (living or ended):
                self._take(number, self._open.pop(number))
            is_superseded = newest >= number + SUPERSEDED_BY
            if is_complete or is_superseded or known.is_left(number, living):
                self._show(number, known, {**living, **ended})
        for number in sorted(self._open)[:-MAX_OPEN_STEPS]:
            del self._open[number]

    def remove(self, label: str) -> None:
        """Drop a rank whose process ended long ago from all steps."""
        for known in self._open.values():
            known.ranks.pop(label, None)
        self._open = {number: known for number, known in self._open.items() if known.ranks}
        rows = {number: without(row, label) for number, row in self._rows.items()}
        self._rows = {number: row for number, row in rows.items() if row is not None}

    def rows(self, num_steps: int = _MOST_ROWS) -> list[StepRow]:
        """Rows of the latest shown steps, oldest first."""
        return sorted(self._rows.values(), key=lambda row: row.begin_seconds)[-num_steps:]

    def spans(self) -> list[tuple[float, float]]:
        """(begin, end) in Unix seconds of the latest shown steps, to estimate the step time."""
        return [(row.begin_seconds, row.end_seconds) for row in self.rows(_PACE_ROWS)]

    def _take(self, number: int, known: _Open) -> None:
        step = _closed(number, known)
        if any(("stage", "checkpoint") in of.parts for of in step.ranks.values()):
            self.checkpoints.append(number)
        known.ranks = dict(step.ranks)
        taken = self._short.take(step)
        self.steps += [taken] if taken is not None else []

    def _show(self, number: int, known: _Open, reached: Mapping[str, int | None]) -> None:
        if known.num_shown == len(known.ranks):
            return
        known.num_shown = len(known.ranks)
        missing = [
            label for label, step in reached.items() if step == number and label not in known.ranks
        ]
        span = known.begin_seconds, known.end_seconds
        self._rows.pop(number, None)
        self._rows[number] = step_row(self._role, number, span, known.ranks, missing)
        num_kept = max(_FEWEST_ROWS, min(_MOST_ROWS, _KEEP_CELLS // len(known.ranks)))
        for old in list(self._rows)[:-num_kept]:
            del self._rows[old]


def latest_rows(roles: Iterable[JobSteps], num_steps: int) -> tuple[StepRow, ...]:
    """The latest ``num_steps`` shown steps of every role, sorted by start time."""
    rows = [row for steps in roles for row in steps.rows(num_steps)]
    return tuple(sorted(rows, key=lambda row: row.begin_seconds))


def _closed(number: int, known: _Open) -> Step:
    ranks = dict(sorted(known.ranks.items(), key=lambda item: (len(item[0]), item[0])))
    if len(known.num_lost) > 1:
        ranks = by_duration(ranks)
    return Step(
        number, known.begin_seconds, sum(known.num_lost.values()), ranks,
        last_end_seconds=known.end_seconds,
    )  # fmt: skip


def by_duration(ranks: Mapping[str, RankStep]) -> dict[str, RankStep]:
    """The same ranks of a step, with their time in collectives split into waiting and transfer."""
    shortest = _shortest(ranks)
    return {label: _split(of, shortest) for label, of in ranks.items()}


def _shortest(ranks: Mapping[str, RankStep]) -> dict[str, float]:
    """Group -> shortest time of a rank in it; without groups whose ranks cannot be matched."""
    members: dict[str, list[RankStep]] = {}
    for of in ranks.values():
        for group in of.groups:
            members.setdefault(group, []).append(of)
    return {
        group: min(of.groups[group].blocked_seconds for of in known)
        for group, known in members.items()
        if len(known) > 1 and len({of.groups[group][:2] for of in known}) == 1
    }


def _split(of: RankStep, shortest: Mapping[str, float]) -> RankStep:
    blocked = of.waited_seconds + of.parts.get(TRANSFER, 0.0)
    transfer = min(blocked, sum(shortest.get(group, 0.0) for group in of.groups))
    parts = {**of.parts, TRANSFER: transfer}
    return replace(of, waited_seconds=round(blocked - transfer, 9), parts=parts)
