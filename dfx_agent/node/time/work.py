"""Model FLOPs of one process by step and stage, and the durations of its outermost stages."""

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
    """Key of a FLOP count."""

    way: str  # forward or backward
    dtype: str
    stage: str  # "" outside all stages


class Passes(NamedTuple):
    """What was passed through a model."""

    tokens: float = 0.0
    pairs: float = 0.0  # pairs of a token and a token that it attends to


@dataclass(frozen=True, slots=True)
class ClosedWork:
    """FLOPs and durations of one step."""

    flops: Mapping[Work, float] = field(default_factory=dict)
    # time in which an outermost stage of this name was open
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    # by stage, if an adapter reports it; also for models without a hook
    passes: Mapping[str, Passes] = field(default_factory=dict)


class WorkAccount:
    """FLOPs of the steps that have not been returned yet."""

    def __init__(self) -> None:
        self._flops: dict[int, dict[Work, float]] = {}
        self._passes: dict[int, dict[str, Passes]] = {}
        self._spans: dict[str, deque[tuple[int, int]]] = {}
        self._is_reported = False

    def add(self, name: str, amount: float, step: int) -> None:
        """Add a count of the guest; counts that are not about FLOPs are ignored."""
        if name.startswith(_PASSES):
            self._add_passes(name[len(_PASSES) :], amount, step)
        if not name.startswith(_FLOPS):
            return
        way, dtype, stage = [*name[len(_FLOPS) :].split("/", 2), "", ""][:3]
        self._is_reported = True
        flops = self._flops.setdefault(step, {})
        key = Work(way, dtype, stage)
        if key in flops or len(flops) < _KEEP_STAGES:
            flops[key] = flops.get(key, 0.0) + amount

    def _add_passes(self, name: str, amount: float, step: int) -> None:
        field_name, _, stage = name.partition("/")
        self._is_reported = True
        passes = self._passes.setdefault(step, {})
        counts = passes.get(stage, Passes())
        if field_name in Passes._fields and (stage in passes or len(passes) < _KEEP_STAGES):
            passes[stage] = counts._replace(**{field_name: getattr(counts, field_name) + amount})

    def note_stages(self, ended: Mapping[str, list[Row]]) -> None:
        """Add ended spans by stage name; only outermost spans count."""
        for name, rows in ended.items() if self._is_reported else ():
            outermost = [(row[0], row[2]) for row in rows if not row[3]]
            if outermost and (name in self._spans or len(self._spans) < _KEEP_STAGES):
                self._spans.setdefault(name, deque(maxlen=_KEEP_SPANS)).extend(outermost)

    def pop(self, step: int, begin_ns: int, end_ns: int) -> ClosedWork | None:
        """Remove and return the work of a finished step; None if nothing was counted in it."""
        flops, passes = self._flops.pop(step, None), self._passes.pop(step, None)
        for by_step in (self._flops, self._passes):
            for old_step in sorted(by_step)[:-_KEEP_STEPS]:
                del by_step[old_step]
        seconds = {}
        for name, spans in self._spans.items():
            if covered_ns := _covered_ns(spans, begin_ns, end_ns):
                seconds[name] = covered_ns / 1e9
            while spans and spans[0][1] <= end_ns:
                spans.popleft()
        if flops is None and passes is None:
            return None
        return ClosedWork(flops or {}, seconds, passes or {})


def _covered_ns(spans: deque[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """Nanoseconds of the interval in which any span was open; overlaps count once."""
    covered, reached = 0, begin_ns
    for begin, end in sorted(spans):
        first, last = max(begin, reached), min(end, end_ns)
        covered += max(0, last - first)
        reached = max(reached, last)
    return covered
