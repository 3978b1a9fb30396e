"""Model FLOPs of one process by step and stage, beside how long its outermost stages took."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.node.time.sweep import Row

_PREFIX = "flops/"
_KEEP_STEPS = 16
_KEEP_STAGES = 64
_KEEP_SPANS = 4096


class Work(NamedTuple):
    """What FLOPs are of; ``way`` is forward or backward, ``stage`` "" outside all."""

    way: str
    dtype: str
    stage: str


@dataclass(frozen=True, slots=True)
class ClosedWork:
    """Of one step. ``stage_seconds``: time in which an outermost stage of this name was open."""

    flops: Mapping[Work, float] = field(default_factory=dict)
    stage_seconds: Mapping[str, float] = field(default_factory=dict)


class WorkAccount:
    """Of the steps that are not closed yet."""

    def __init__(self) -> None:
        self._flops: dict[int, dict[Work, float]] = {}
        self._spans: dict[str, deque[tuple[int, int]]] = {}
        self._is_told = False

    def add(self, name: str, amount: float, step: int) -> None:
        """A count of the guest; passed over where it is none of FLOPs."""
        if not name.startswith(_PREFIX):
            return
        way, dtype, stage = [*name[len(_PREFIX) :].split("/", 2), "", ""][:3]
        self._is_told = True
        flops = self._flops.setdefault(step, {})
        key = Work(way, dtype, stage)
        if key in flops or len(flops) < _KEEP_STAGES:
            flops[key] = flops.get(key, 0.0) + amount

    def noted(self, ended: Mapping[str, list[Row]]) -> Mapping[str, list[Row]]:
        """Stages that have ended, by name, as given; those inside others count with them."""
        for name, rows in ended.items() if self._is_told else ():
            outermost = [(row[0], row[2]) for row in rows if not row[3]]
            if outermost and (name in self._spans or len(self._spans) < _KEEP_STAGES):
                self._spans.setdefault(name, deque(maxlen=_KEEP_SPANS)).extend(outermost)
        return ended

    def take(self, step: int, begin_ns: int, end_ns: int) -> ClosedWork | None:
        """What is known of a step that is over; None where no FLOPs were counted in it."""
        flops = self._flops.pop(step, None)
        for old in sorted(self._flops)[:-_KEEP_STEPS]:
            del self._flops[old]
        seconds = {}
        for name, spans in self._spans.items():
            if taken := _covered_ns(spans, begin_ns, end_ns):
                seconds[name] = taken / 1e9
            while spans and spans[0][1] <= end_ns:
                spans.popleft()
        return None if flops is None else ClosedWork(flops, seconds)


def _covered_ns(spans: deque[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """Of a window; what threads did at the same time counts once."""
    covered, reached = 0, begin_ns
    for begin, end in sorted(spans):
        first, last = max(begin, reached), min(end, end_ns)
        covered += max(0, last - first)
        reached = max(reached, last)
    return covered
