"""Model FLOPs of one process by step and stage, beside how long its outermost stages took."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.node.time.sweep import Row

_FLOPS, _PASSES = "flops/", "passes/"
_KEEP_STEPS = 16
_KEEP_STAGES = 64
_KEEP_SPANS = 4096


class Work(NamedTuple):
    """What FLOPs are of; ``way`` is forward or backward, ``stage`` "" outside all."""

    way: str
    dtype: str
    stage: str


class Passes(NamedTuple):
    """What went through a model; ``pairs``: each token with each one that it attends to."""

    tokens: float = 0.0
    pairs: float = 0.0


@dataclass(frozen=True, slots=True)
class ClosedWork:
    """Of one step. ``stage_seconds``: time in which an outermost stage of this name was open.

    ``passes``: by stage, where an adapter tells it; of models that no hook is on, too.
    """

    flops: Mapping[Work, float] = field(default_factory=dict)
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    passes: Mapping[str, Passes] = field(default_factory=dict)


class WorkAccount:
    """Of the steps that are not closed yet."""

    def __init__(self) -> None:
        self._flops: dict[int, dict[Work, float]] = {}
        self._passes: dict[int, dict[str, Passes]] = {}
        self._spans: dict[str, deque[tuple[int, int]]] = {}
        self._is_told = False

    def add(self, name: str, amount: float, step: int) -> None:
        """A count of the guest; passed over where it is none of FLOPs."""
        if name.startswith(_PASSES):
            self._add_passes(name[len(_PASSES) :], amount, step)
        if not name.startswith(_FLOPS):
            return
        way, dtype, stage = [*name[len(_FLOPS) :].split("/", 2), "", ""][:3]
        self._is_told = True
        flops = self._flops.setdefault(step, {})
        key = Work(way, dtype, stage)
        if key in flops or len(flops) < _KEEP_STAGES:
            flops[key] = flops.get(key, 0.0) + amount

    def _add_passes(self, name: str, amount: float, step: int) -> None:
        of, _, stage = name.partition("/")
        self._is_told = True
        passes = self._passes.setdefault(step, {})
        known = passes.get(stage, Passes())
        if of in Passes._fields and (stage in passes or len(passes) < _KEEP_STAGES):
            passes[stage] = known._replace(**{of: getattr(known, of) + amount})

    def noted(self, ended: Mapping[str, list[Row]]) -> Mapping[str, list[Row]]:
        """Stages that have ended, by name, as given; those inside others count with them."""
        for name, rows in ended.items() if self._is_told else ():
            outermost = [(row[0], row[2]) for row in rows if not row[3]]
            if outermost and (name in self._spans or len(self._spans) < _KEEP_STAGES):
                self._spans.setdefault(name, deque(maxlen=_KEEP_SPANS)).extend(outermost)
        return ended

    def take(self, step: int, begin_ns: int, end_ns: int) -> ClosedWork | None:
        """What is known of a step that is over; None where nothing was counted in it."""
        flops, passes = self._flops.pop(step, None), self._passes.pop(step, None)
        for kept in (self._flops, self._passes):
            for old in sorted(kept)[:-_KEEP_STEPS]:
                del kept[old]
        seconds = {}
        for name, spans in self._spans.items():
            if taken := _covered_ns(spans, begin_ns, end_ns):
                seconds[name] = taken / 1e9
            while spans and spans[0][1] <= end_ns:
                spans.popleft()
        if flops is None and passes is None:
            return None
        return ClosedWork(flops or {}, seconds, passes or {})


def _covered_ns(spans: deque[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """Of a window; what threads did at the same time counts once."""
    covered, reached = 0, begin_ns
    for begin, end in sorted(spans):
        first, last = max(begin, reached), min(end, end_ns)
        covered += max(0, last - first)
        reached = max(reached, last)
    return covered
