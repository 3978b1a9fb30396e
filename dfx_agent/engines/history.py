"""One part of an engine over time: what it counted, and how busy it was in the newest window."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from dfx_agent.engines.exposition import Part
from dfx_agent.engines.totals import Totals, difference, latency
from dfx_agent.snapshot import Histogram, Latency

WINDOW_SECONDS = 60.0
# a reading stands for the time around it, but not for longer
_STANDS_SECONDS = 15.0
_MAX_READINGS = 64


@dataclass(frozen=True)
class _Moment:
    at: float
    is_running: bool | None
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]


class History:
    """``at`` everywhere is on the monotonic clock, in seconds."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.newest = Part()
        self.num_restarts = 0
        self.busy_seconds = self.observed_seconds = 0.0
        self._moments: deque[_Moment] = deque(maxlen=_MAX_READINGS)

    def add(self, part: Part, at: float, *, is_restart: bool = False) -> None:
        is_known = bool(self._moments)
        has_begun_anew = self.totals.add(part.counters, part.histograms, is_restart=is_restart)
        self.num_restarts += has_begun_anew and is_known
        self.newest = part
        running = part.gauges.get("running_requests")
        moment = _Moment(
            at,
            None if running is None else running > 0,
            dict(self.totals.counters),
            dict(self.totals.histograms),
        )
        if self._moments:
            busy, observed = _between(self._moments[-1], moment)
            self.busy_seconds += busy
            self.observed_seconds += observed
        self._moments.append(moment)
        while len(self._moments) > 2 and self._moments[1].at <= at - WINDOW_SECONDS:
            self._moments.popleft()

    @property
    def window_seconds(self) -> float | None:
        seconds = self._moments[-1].at - self._moments[0].at if self._moments else 0.0
        return seconds or None

    def rates(self) -> dict[str, float]:
        """Increase a second over the window of what was counted at both its ends."""
        seconds = self.window_seconds
        if seconds is None:
            return {}
        first, last = self._moments[0].counters, self._moments[-1].counters
        return {name: (last[name] - first[name]) / seconds for name in last if name in first}

    def latencies(self) -> dict[str, Latency]:
        if self.window_seconds is None:
            return {}
        first, last = self._moments[0].histograms, self._moments[-1].histograms
        found = {
            name: latency(difference(last[name], first[name])) for name in last if name in first
        }
        return {name: told for name, told in found.items() if told is not None}

    def busy_ratio(self) -> float | None:
        """Between 0 and 1; None before two readings, and without anything to tell it by."""
        moments = list(self._moments)
        pairs = [_between(a, b) for a, b in pairwise(moments)]
        observed = sum(seconds for _, seconds in pairs)
        return sum(busy for busy, _ in pairs) / observed if observed else None


def _between(before: _Moment, after: _Moment) -> tuple[float, float]:
    """(seconds in which requests ran, seconds of which that is known) between two readings."""
    seconds = after.at - before.at
    idle, idle_before = (moment.counters.get("idle_seconds") for moment in (after, before))
    if idle is not None and idle_before is not None:
        return min(seconds, max(0.0, seconds - (idle - idle_before))), seconds
    half = min(seconds, _STANDS_SECONDS) / 2
    known = [moment.is_running for moment in (before, after) if moment.is_running is not None]
    return half * sum(known), half * len(known)
