"""Closed steps of one role over all nodes: what each rank worked and waited in them.

Who waited for whom is told by durations: nobody leaves a collective before the last has come, so
the rank that was in the collectives of a group shortest came last, and what it took was transfer.
Of a step only the sums by group are known; how much longer one rank was in them than another is
exact, and what is called transfer is so at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from dfx_agent.facts.short_steps import ShortSteps
from dfx_agent.facts.steps import TRANSFER, RankStep, Step
from dfx_agent.job.here import Shift

_KEEP_STEPS, _KEEP_ROWS, _KEEP_OPEN = 32, 16, 64


@dataclass
class _Open:
    """A step that not all have passed. ``num_lost``: records, by node."""

    begin_seconds: float
    ranks: dict[str, RankStep] = field(default_factory=dict)
    num_lost: dict[str, int] = field(default_factory=dict)


class JobSteps:
    """One role; ``add`` what nodes tell, then ``close``. ``rows``: the newest as they were."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque(maxlen=_KEEP_STEPS)
        self.rows: deque[Step] = deque(maxlen=_KEEP_ROWS)
        self.checkpoints: deque[int] = deque(maxlen=_KEEP_ROWS)  # steps with a stage of that name
        self._short = ShortSteps()
        self._open: dict[int, _Open] = {}
        self._newest: dict[str, tuple[int, float]] = {}  # node -> its newest step and its begin

    def begin_anew(self) -> None:
        """A rank was restarted: the others begin anew too."""
        self._open.clear()
        self.steps.clear()
        self._short.clear()
        self._newest.clear()

    def add(self, node: str, told: Step, shift: Shift, label: Callable[[str], str]) -> None:
        """``label``: how a rank is called in the job. What was told before is passed over."""
        before = self._newest.get(node)
        if before is not None and told.step <= before[0] and told.begin_seconds <= before[1]:
            return
        self._newest[node] = told.step, told.begin_seconds
        step = shift.step(told)
        known = self._open.setdefault(step.step, _Open(step.begin_seconds))
        known.begin_seconds = min(known.begin_seconds, step.begin_seconds)
        known.ranks |= {label(rank): of for rank, of in step.ranks.items()}
        known.num_lost[node] = step.num_lost

    def close(self, awaited: Collection[str]) -> None:
        """Take the steps that all of ``awaited`` have passed."""
        for number, known in sorted(self._open.items()):
            if awaited and all(label in known.ranks for label in awaited):
                step = _closed(number, self._open.pop(number))
                self.rows.append(step)
                if any(map(_has_saved, step.ranks.values())):
                    self.checkpoints.append(number)
                taken = self._short.take(step)
                self.steps += [taken] if taken is not None else []
        for number in sorted(self._open)[:-_KEEP_OPEN]:
            del self._open[number]


def _has_saved(of: RankStep) -> bool:
    return ("stage", "checkpoint") in of.parts


def _closed(number: int, known: _Open) -> Step:
    ranks = dict(sorted(known.ranks.items(), key=lambda item: (len(item[0]), item[0])))
    if len(known.num_lost) > 1:
        ranks = by_duration(ranks)
    return Step(number, known.begin_seconds, sum(known.num_lost.values()), ranks)


def by_duration(ranks: Mapping[str, RankStep]) -> dict[str, RankStep]:
    """The same ranks of a step, with what of their time in collectives was transfer."""
    shortest = _shortest(ranks)
    return {label: _split(of, shortest) for label, of in ranks.items()}


def _shortest(ranks: Mapping[str, RankStep]) -> dict[str, float]:
    """Group -> seconds of the rank that was in it shortest; not of one that cannot be matched."""
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
