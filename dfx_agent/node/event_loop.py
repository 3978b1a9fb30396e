"""Lag of the asyncio event loop in one process: how late it is, and which code blocked it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import fmean
from typing import NamedTuple

from dfx_agent.node.loop_phases import RecentSpans, holders, loop_step
from dfx_agent.node.segments.records import LoopHeld, LoopLag
from dfx_agent.node.time.account import SpanEvent, StepInterval
from dfx_agent.node.time.sweep import Row
from dfx_agent.snapshot.event_loop import EventLoopRow, LagStats, LoopStep

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
            window_seconds=(now_ns - begin_ns) / 1e9,
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
