"""Time of one step of a process with an event loop, by phase, and how long each blocked the loop.

A phase is a stage without the stages nested in it. Concurrent phases each count the full time. The
blocked time is given only if all spans of the step are still stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dfx_agent.node.segments.records import LoopHeld
from dfx_agent.node.time.account import SpanEvent, Split, StepInterval
from dfx_agent.node.time.sweep import STILL_OPEN, Owner, Owners, Row, Stretches, concurrent, nested
from dfx_agent.snapshot.event_loop import LoopHolder, LoopPhase, LoopStep
from dfx_agent.wire.records import STAGE, WAIT

_KEEP_SPANS = 8192
_MAX_PHASES, _MAX_HOLDERS = 64, 8


class RecentSpans:
    """The latest 8192 spans of one process; none is missing from ``since_ns`` on."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.since_ns = 0

    def add(self, spans: Mapping[int, Row], odd: Mapping[int, Row]) -> None:
        """Add the spans of one poll, in the order of their ends."""
        rows = [*self.rows, *spans.values()]
        rows += (row for span, row in odd.items() if span not in spans)
        if len(rows) > _KEEP_SPANS:
            self.since_ns = max(row[2] for row in rows[:-_KEEP_SPANS])
        self.rows = rows[-_KEEP_SPANS:]

    def within(self, window: StepInterval, opened: Iterable[SpanEvent]) -> list[Row] | None:
        """Spans of one step, cut at its bounds; None if some of them are no longer stored."""
        if self.since_ns > window.begin_ns:
            return None
        by_span = {row[1]: row for row in self.rows}
        for event in opened:
            if event.kind in (STAGE, WAIT) and event.span not in by_span:
                begin_ns, span, parent, kind = event.begin_ns, event.span, event.parent, event.kind
                by_span[span] = begin_ns, span, STILL_OPEN, parent, kind, event.name
        return cut_to(window, by_span.values())


def cut_to(window: StepInterval, rows: Iterable[Row]) -> list[Row]:
    """The parts of spans that lie in a finished step, in the order of their begins."""
    first_ns, last_ns = window.begin_ns, window.end_ns or window.begin_ns
    cut = (
        (max(begin, first_ns), span, min(end, last_ns), parent if parent < span else 0, kind, name)
        for begin, span, end, parent, kind, name in rows
    )
    return sorted(row for row in cut if row[0] < row[2])


class _Held(NamedTuple):
    """An interval within one phase in which the loop was blocked for ``seconds``."""

    phase: str
    holder: str
    seconds: float


def loop_step(
    window: StepInterval, spans: Sequence[Row] | None, held: Iterable[LoopHeld]
) -> LoopStep | None:
    """Phases of a finished step; None for a step without a number or an end."""
    if window.step is None or window.end_ns is None:
        return None
    wall = _wall_seconds(window.split)
    parts = None if spans is None else _held_in(window, spans, held)
    phases = [_phase(name, seconds, parts) for name, seconds in wall.items()]
    phases.sort(key=lambda phase: -phase.seconds)
    seconds = (window.end_ns - window.begin_ns) / 1e9
    omitted = max(0, len(phases) - _MAX_PHASES)
    return LoopStep(window.step, seconds, tuple(phases[:_MAX_PHASES]), omitted)


def holders(held: Iterable[tuple[str, float]]) -> tuple[LoopHolder, ...]:
    """Blockers from (name, seconds), longest total first; eight at most."""
    seconds_by_name: defaultdict[str, list[float]] = defaultdict(list)
    for name, seconds in held:
        seconds_by_name[name].append(seconds)
    found = [
        LoopHolder(name, sum(times), len(times), max(times))
        for name, times in seconds_by_name.items()
    ]
    return tuple(sorted(found, key=lambda holder: -holder.seconds)[:_MAX_HOLDERS])


def _phase(name: str, seconds: float, parts: Sequence[_Held] | None) -> LoopPhase:
    if parts is None:
        return LoopPhase(name, seconds, None, ())
    holds = [(part.holder, part.seconds) for part in parts if part.phase == name]
    return LoopPhase(name, seconds, sum(hold_seconds for _, hold_seconds in holds), holders(holds))


def _wall_seconds(split: Split) -> dict[str, float]:
    """Seconds in each stage, including its waits; "" is the time outside all stages."""
    wall: defaultdict[str, int] = defaultdict(int)
    for stage, value_ns in split.stages_ns.items():
        wall[stage] += value_ns
    for (_, stage), value_ns in split.waits_ns.items():
        wall[stage] += value_ns
    wall[""] += split.idle_ns
    return {name: value_ns / 1e9 for name, value_ns in wall.items() if value_ns}


def _held_in(window: StepInterval, spans: Sequence[Row], held: Iterable[LoopHeld]) -> list[_Held]:
    begin_ns, end_ns = window.begin_ns, window.end_ns or window.begin_ns
    stretches, stages = Stretches([], []), Owners()
    reached = nested(spans, begin_ns, end_ns, stages, stretches)
    if reached < end_ns:
        concurrent(spans, reached, end_ns, stages, stretches)
    return [part for hold in held for part in _parts(hold, begin_ns, stretches)]


def _parts(held: LoopHeld, begin_ns: int, stretches: Stretches) -> Iterable[_Held]:
    """Split one hold by phase. Each part gets the same share of its time as the whole hold."""
    owners, ends = stretches
    share = held.seconds / max(1, held.end_ns - held.begin_ns)
    now_ns = max(held.begin_ns, begin_ns)
    for index in range(bisect_right(ends, now_ns), len(ends)):
        until_ns = min(held.end_ns, ends[index])
        if until_ns <= now_ns:
            return
        for phase in _phases(owners[index]):
            yield _Held(phase, held.name, (until_ns - now_ns) * share)
        now_ns = until_ns


def _phases(owner: Owner) -> tuple[str, ...]:
    return (owner.name, *owner.others) if owner.kind == STAGE else (owner.stage,)
