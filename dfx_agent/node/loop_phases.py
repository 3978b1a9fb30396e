"""Where a step of a process with an event loop went, phase by phase, and how late its loop was.

A phase is a stage, without the stages inside it; several at once each have the time. How long the
loop was late in one is told where all spans of the step are still known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dfx_agent.node.segments.records import LoopHeld
from dfx_agent.node.time.account import SpanEvent, Split, Window
from dfx_agent.node.time.sweep import STILL_OPEN, Owner, Owners, Row, Stretches, concurrent, nested
from dfx_agent.snapshot.event_loop import LoopHolder, LoopPhase, LoopStep
from dfx_agent.wire.records import STAGE, WAIT

_KEEP_SPANS = 8192
_MAX_PHASES, _MAX_HOLDERS = 64, 8


class NewestSpans:
    """The newest 8192 spans of one process; complete from ``since_ns`` on."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.since_ns = 0

    def take(self, spans: Mapping[int, Row], odd: Mapping[int, Row]) -> None:
        """What a reading brought, in the order of their ends."""
        rows = [*self.rows, *spans.values()]
        rows += (row for span, row in odd.items() if span not in spans)
        if len(rows) > _KEEP_SPANS:
            self.since_ns = max(row[2] for row in rows[:-_KEEP_SPANS])
        self.rows = rows[-_KEEP_SPANS:]

    def within(self, window: Window, opened: Iterable[SpanEvent]) -> list[Row] | None:
        """Those of a step, cut at its ends; None where some of them are not known any more."""
        if self.since_ns > window.begin_ns:
            return None
        known = {row[1]: row for row in self.rows}
        for event in opened:
            if event.kind in (STAGE, WAIT) and event.span not in known:
                begin_ns, span, parent, kind = event.begin_ns, event.span, event.parent, event.kind
                known[span] = begin_ns, span, STILL_OPEN, parent, kind, event.name
        return cut_to(window, known.values())


def cut_to(window: Window, rows: Iterable[Row]) -> list[Row]:
    """What of spans lies in a step that is over, in the order of their begins."""
    first_ns, last_ns = window.begin_ns, window.end_ns or window.begin_ns
    cut = (
        (max(begin, first_ns), span, min(end, last_ns), parent if parent < span else 0, kind, name)
        for begin, span, end, parent, kind, name in rows
    )
    return sorted(row for row in cut if row[0] < row[2])


class _Held(NamedTuple):
    """A stretch of one phase, of which the loop was held for ``seconds``."""

    phase: str
    holder: str
    seconds: float


def loop_step(
    window: Window, spans: Sequence[Row] | None, held: Iterable[LoopHeld]
) -> LoopStep | None:
    """Of a step that is over; None for one without a number or an end."""
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
    """Of (name, seconds), who held longest first; eight at most."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for name, each in held:
        seconds[name].append(each)
    found = [
        LoopHolder(name, sum(all_of), len(all_of), max(all_of)) for name, all_of in seconds.items()
    ]
    return tuple(sorted(found, key=lambda holder: -holder.seconds)[:_MAX_HOLDERS])


def _phase(name: str, seconds: float, parts: Sequence[_Held] | None) -> LoopPhase:
    if parts is None:
        return LoopPhase(name, seconds, None, ())
    own = [(part.holder, part.seconds) for part in parts if part.phase == name]
    return LoopPhase(name, seconds, sum(each for _, each in own), holders(own))


def _wall_seconds(split: Split) -> dict[str, float]:
    """Seconds of each stage, its waits with it; "" is outside all stages."""
    wall: defaultdict[str, int] = defaultdict(int)
    for stage, value_ns in split.stages_ns.items():
        wall[stage] += value_ns
    for (_, stage), value_ns in split.waits_ns.items():
        wall[stage] += value_ns
    wall[""] += split.idle_ns
    return {name: value_ns / 1e9 for name, value_ns in wall.items() if value_ns}


def _held_in(window: Window, spans: Sequence[Row], held: Iterable[LoopHeld]) -> list[_Held]:
    begin_ns, end_ns = window.begin_ns, window.end_ns or window.begin_ns
    stretches, stages = Stretches([], []), Owners()
    reached = nested(spans, begin_ns, end_ns, stages, stretches)
    if reached < end_ns:
        concurrent(spans, reached, end_ns, stages, stretches)
    return [part for each in held for part in _parts(each, begin_ns, stretches)]


def _parts(held: LoopHeld, begin_ns: int, stretches: Stretches) -> Iterable[_Held]:
    """One holder's time by phase; of all its time the same share is its own."""
    owners, ends = stretches
    share = held.seconds / max(1, held.end_ns - held.begin_ns)
    now_ns = max(held.begin_ns, begin_ns)
    for place in range(bisect_right(ends, now_ns), len(ends)):
        until_ns = min(held.end_ns, ends[place])
        if until_ns <= now_ns:
            return
        for phase in _phases(owners[place]):
            yield _Held(phase, held.name, (until_ns - now_ns) * share)
        now_ns = until_ns


def _phases(owner: Owner) -> tuple[str, ...]:
    return (owner.name, *owner.others) if owner.kind == STAGE else (owner.stage,)
