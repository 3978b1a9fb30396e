"""The event loop of one process: what its guest says of lags and of who held it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import fmean
from typing import NamedTuple

from dfx_agent.node.loop_phases import NewestSpans, holders, loop_step
from dfx_agent.node.segments.records import LoopHeld, LoopLag
from dfx_agent.node.time.account import SpanEvent, Window
from dfx_agent.node.time.sweep import Row
from dfx_agent.snapshot.event_loop import EventLoopRow, LagStats, LoopStep

WINDOW_SECONDS = 60.0
LATE_SECONDS = 0.1
_ASKED_SECONDS = 0.1  # between two questions of the guest, at most
_KEEP_LAGS, _KEEP_HELD = 2048, 1024
_MAX_OMITTED = 6000  # of one answer: 10 minutes


class _Step(NamedTuple):
    number: int
    lags: list[float]


class LoopAccount:
    """Takes records as they come; ``row`` when somebody asks."""

    def __init__(self) -> None:
        self._lags: deque[LoopLag] = deque(maxlen=_KEEP_LAGS)
        self._held: deque[LoopHeld] = deque(maxlen=_KEEP_HELD)
        self._unanswered: LoopLag | None = None
        self._late_seconds = 0.0  # of all that have answered
        self._step: _Step | None = None
        self._last_step: _Step | None = None
        self._spans = NewestSpans()
        self._num_held = 0
        # the phases of a step, and what they were worked out from
        self._phases: tuple[Window | None, int, LoopStep | None] = None, 0, None

    def take_lag(self, lag: LoopLag) -> None:
        self._unanswered = lag if lag.held_by else None
        if lag.held_by:
            return
        self._lags.append(lag)
        self._late_seconds += lag.seconds if lag.seconds >= LATE_SECONDS else 0.0
        if self._step is None or self._step.number != lag.step:
            self._last_step, self._step = self._step, _Step(lag.step, [])
        if len(self._step.lags) < _KEEP_LAGS:
            self._step.lags.append(lag.seconds)

    def take_held(self, held: LoopHeld) -> None:
        self._held.append(held)
        self._num_held += 1

    def take_spans(self, spans: Mapping[int, Row], odd: Mapping[int, Row]) -> None:
        """Of the same reading, after its lags: a process without a loop keeps none."""
        if (spans or odd) and (self._lags or self._unanswered):
            self._spans.take(spans, odd)

    def row(
        self, now_ns: int, last: Window | None = None, opened: Iterable[SpanEvent] = ()
    ) -> EventLoopRow | None:
        """None where no loop has answered within the newest minute.

        ``last``: the newest step that is over; ``opened``: spans that are open now.
        """
        since_ns = now_ns - int(WINDOW_SECONDS * 1e9)
        held, all_of, standing = list(self._held), list(self._lags), 0.0
        if self._unanswered is not None:  # it is held still, perhaps for ever
            all_of.append(self._unanswered)
            name, end_ns = self._unanswered.held_by, self._unanswered.end_ns
            standing = self._unanswered.seconds
            held.append(LoopHeld(name, end_ns - int(standing * 1e9), end_ns, standing))
        lags = [lag for lag in all_of if lag.end_ns >= since_ns]
        if not lags:
            return None
        lag_seconds = [lag.seconds for lag in lags]
        begin_ns = max(since_ns, lags[0].end_ns - int(lags[0].seconds * 1e9))
        of_step = self._last_step.lags if self._last_step else ()
        return EventLoopRow(
            window_seconds=(now_ns - begin_ns) / 1e9,
            window=lag_stats(lag_seconds),
            step=lag_stats(of_step) if of_step else None,
            late_seconds=sum(
                min(lag.seconds, (lag.end_ns - since_ns) / 1e9)
                for lag in lags
                if lag.seconds >= LATE_SECONDS
            ),
            holders=holders((h.name, h.seconds) for h in held if h.end_ns >= since_ns),
            last_step=None if last is None else self._phases_of(last, opened),
            late_seconds_total=self._late_seconds + standing,
            unanswered_seconds=standing,
            unanswered_holder=self._unanswered.held_by if self._unanswered else "",
        )

    def _phases_of(self, last: Window, opened: Iterable[SpanEvent]) -> LoopStep | None:
        """Anew for another step, and when somebody held the loop: that is told afterwards."""
        window, num_held, known = self._phases
        if window is not last or num_held != self._num_held:
            known = loop_step(last, self._spans.within(last, opened), self._held)
            self._phases = last, self._num_held, known
        return known


def lag_stats(lags: Sequence[float]) -> LagStats:
    """Of answers, at least one, in seconds."""
    all_of = sorted(late for lag in lags for late in _with_omitted(lag))
    p50, p90, p99 = (all_of[ceil(share * len(all_of)) - 1] for share in (0.5, 0.9, 0.99))
    return LagStats(len(lags), fmean(all_of), p50, p90, p99, all_of[-1])


def _with_omitted(lag: float) -> list[float]:
    """The answer, and those to questions that could not be asked meanwhile."""
    num_omitted = min(_MAX_OMITTED, int(lag / _ASKED_SECONDS))
    return [lag - _ASKED_SECONDS * number for number in range(num_omitted + 1)]
