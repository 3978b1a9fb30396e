"""Lag of the asyncio event loop in one process: how late it is, and which code blocked it.

A phase of a step is a stage without the stages nested in it. Concurrent phases each count the full
time. The blocked time is given only if all spans of the step are still stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import fmean
from typing import NamedTuple

from dfx_agent.node.segments.records import LoopHeld, LoopLag
from dfx_agent.node.time.account import SpanEvent, Split, StepInterval
from dfx_agent.node.time.sweep import STILL_OPEN, Owner, Owners, Row, Stretches, concurrent, nested
from dfx_agent.snapshot.event_loop import EventLoopRow, LagStats, LoopHolder, LoopPhase, LoopStep
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


WINDOW_SECONDS = 60.0
LATE_SECONDS = 0.1
_ASKED_SECONDS = 0.1  # longest interval between two probes by the guest
_KEEP_LAGS, _KEEP_HELD = 2048, 1024
_MAX_OMITTED = 6000  # probes that one lag may stand for: 10 minutes


class _Step(NamedTuple):
    number: int
    lags: list[float]


class LoopAccount:
    """Collects lag records of one process; ``row`` summarizes the last minute."""

    def __init__(self) -> None:
        self._lags: deque[LoopLag] = deque(maxlen=_KEEP_LAGS)
        self._held: deque[LoopHeld] = deque(maxlen=_KEEP_HELD)
        self._unanswered: LoopLag | None = None
        self._late_seconds = 0.0  # sum of all completed lags
        self._step: _Step | None = None
        self._last_step: _Step | None = None
        self._spans = RecentSpans()
        self._num_held = 0
        # phases of the last step, and the inputs that they were computed from
        self._phases: tuple[StepInterval | None, int, LoopStep | None] = None, 0, None

    def add_lag(self, lag: LoopLag) -> None:
        self._unanswered = lag if lag.held_by else None
        if lag.held_by:
            return
        self._lags.append(lag)
        self._late_seconds += lag.seconds if lag.seconds >= LATE_SECONDS else 0.0
        if self._step is None or self._step.number != lag.step:
            self._last_step, self._step = self._step, _Step(lag.step, [])
        if len(self._step.lags) < _KEEP_LAGS:
            self._step.lags.append(lag.seconds)

    def add_held(self, held: LoopHeld) -> None:
        self._held.append(held)
        self._num_held += 1

    def add_spans(self, spans: Mapping[int, Row], odd: Mapping[int, Row]) -> None:
        """Store spans of a poll, after its lags; nothing is stored for a process without a loop."""
        if (spans or odd) and (self._lags or self._unanswered):
            self._spans.add(spans, odd)

    def row(
        self, now_ns: int, last: StepInterval | None = None, opened: Iterable[SpanEvent] = ()
    ) -> EventLoopRow | None:
        """Summary of the last minute; None if no loop has reported in it.

        ``last``: the latest finished step; ``opened``: spans that are open now.
        """
        since_ns = now_ns - int(WINDOW_SECONDS * 1e9)
        held, all_lags, unanswered_seconds = list(self._held), list(self._lags), 0.0
        if self._unanswered is not None:  # the loop is still blocked, perhaps for ever
            all_lags.append(self._unanswered)
            name, end_ns = self._unanswered.held_by, self._unanswered.end_ns
            unanswered_seconds = self._unanswered.seconds
            begin_ns = end_ns - int(unanswered_seconds * 1e9)
            held.append(LoopHeld(name, begin_ns, end_ns, unanswered_seconds))
        lags = [lag for lag in all_lags if lag.end_ns >= since_ns]
        if not lags:
            return None
        lag_seconds = [lag.seconds for lag in lags]
        begin_ns = max(since_ns, lags[0].end_ns - int(lags[0].seconds * 1e9))
        step_lags = self._last_step.lags if self._last_step else ()
        return EventLoopRow(
            window_seconds=max(0, now_ns - begin_ns) / 1e9,
            window=lag_stats(lag_seconds),
            step=lag_stats(step_lags) if step_lags else None,
            late_seconds=sum(
                min(lag.seconds, (lag.end_ns - since_ns) / 1e9)
                for lag in lags
                if lag.seconds >= LATE_SECONDS
            ),
            holders=holders((hold.name, hold.seconds) for hold in held if hold.end_ns >= since_ns),
            last_step=None if last is None else self._phases_of(last, opened),
            late_seconds_total=self._late_seconds + unanswered_seconds,
            unanswered_seconds=unanswered_seconds,
            unanswered_holder=self._unanswered.held_by if self._unanswered else "",
        )

    def _phases_of(self, last: StepInterval, opened: Iterable[SpanEvent]) -> LoopStep | None:
        """Recomputed for a new step and after each hold, which is reported when it is over."""
        window, num_held, phases = self._phases
        if window is not last or num_held != self._num_held:
            phases = loop_step(last, self._spans.within(last, opened), self._held)
            self._phases = last, self._num_held, phases
        return phases


def lag_stats(lags: Sequence[float]) -> LagStats:
    """Statistics of at least one lag, in seconds."""
    all_lags = sorted(late for lag in lags for late in _with_omitted(lag))
    p50, p90, p99 = (all_lags[ceil(share * len(all_lags)) - 1] for share in (0.5, 0.9, 0.99))
    return LagStats(len(lags), fmean(all_lags), p50, p90, p99, all_lags[-1])


def _with_omitted(lag: float) -> list[float]:
    """This lag, and the lags of the probes that could not be sent while the loop was blocked."""
    num_omitted = min(_MAX_OMITTED, int(lag / _ASKED_SECONDS))
    return [lag - _ASKED_SECONDS * number for number in range(num_omitted + 1)]
