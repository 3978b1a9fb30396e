"""Values of one engine part over time: its counters, and its busy time in the latest window.

Engines count from their own start. A counter that decreases, or a changed start time of the
process, means a restart: the new value is then the increase, as in Prometheus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from dfx_agent.node.engines.exposition import EnginePart
from dfx_agent.snapshot import Histogram, Latency

WINDOW_SECONDS = 60.0
# a reading counts for the time around it, but at most for this long
_MAX_READING_SECONDS = 15.0
_MAX_READINGS = 64


@dataclass(frozen=True)
class _Moment:
    at: float
    is_running: bool | None
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]


class History:
    """All times ``at`` are monotonic, in seconds."""

    def __init__(self) -> None:
        self.totals = EngineTotals()
        self.latest = EnginePart()
        self.num_restarts = 0
        self.busy_seconds = self.observed_seconds = 0.0
        self.kv_cache_peak_ratio: float | None = None
        self._moments: deque[_Moment] = deque(maxlen=_MAX_READINGS)

    def add(self, part: EnginePart, at: float, *, is_restart: bool = False) -> None:
        is_first = not self._moments
        has_restarted = self.totals.add(part.counters, part.histograms, is_restart=is_restart)
        self.num_restarts += has_restarted and not is_first
        self.latest = part
        usages = (self.kv_cache_peak_ratio, part.gauges.get("kv_cache_usage_ratio"))
        self.kv_cache_peak_ratio = max((u for u in usages if u is not None), default=None)
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
        """Increase per second over the window, of counters that both ends of it have."""
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
        return {name: value for name, value in found.items() if value is not None}

    def busy_ratio(self) -> float | None:
        """Between 0 and 1; None before two readings, and if the engine does not report it."""
        moments = list(self._moments)
        pairs = [_between(a, b) for a, b in pairwise(moments)]
        observed = sum(seconds for _, seconds in pairs)
        return sum(busy for busy, _ in pairs) / observed if observed else None


def _between(before: _Moment, after: _Moment) -> tuple[float, float]:
    """(seconds with running requests, seconds for which that is known) between two readings."""
    seconds = after.at - before.at
    idle, idle_before = (moment.counters.get("idle_seconds") for moment in (after, before))
    if idle is not None and idle_before is not None:
        return min(seconds, max(0.0, seconds - (idle - idle_before))), seconds
    half = min(seconds, _MAX_READING_SECONDS) / 2
    states = [moment.is_running for moment in (before, after) if moment.is_running is not None]
    return half * sum(states), half * len(states)


@dataclass
class EngineTotals:
    """Counters and histograms of one engine part, continued over restarts: they never decrease."""

    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    _last_counters: Mapping[str, float] = field(default_factory=dict)
    _last_histograms: Mapping[str, Histogram] = field(default_factory=dict)

    def add(
        self,
        counters: Mapping[str, float],
        histograms: Mapping[str, Histogram],
        *,
        is_restart: bool = False,
    ) -> bool:
        """Add the engine's current values. Returns whether it has restarted since the last call."""
        is_restart = is_restart or self._has_fallen(counters, histograms)
        for name, value in counters.items():
            before = 0.0 if is_restart else self._last_counters.get(name, 0.0)
            self.counters[name] = self.counters.get(name, 0.0) + value - before
        for name, histogram in histograms.items():
            last = None if is_restart else self._last_histograms.get(name)
            self.histograms[name] = _grown(self.histograms.get(name), histogram, last)
        self._last_counters = {**({} if is_restart else self._last_counters), **counters}
        self._last_histograms = {**({} if is_restart else self._last_histograms), **histograms}
        return is_restart

    def _has_fallen(
        self, counters: Mapping[str, float], histograms: Mapping[str, Histogram]
    ) -> bool:
        fell = any(value < self._last_counters.get(name, 0.0) for name, value in counters.items())
        return fell or any(
            name in self._last_histograms and not _has_grown(self._last_histograms[name], histogram)
            for name, histogram in histograms.items()
        )


def _has_grown(before: Histogram, now: Histogram) -> bool:
    return before.bounds == now.bounds and all(
        old <= new for old, new in zip(before.counts, now.counts, strict=True)
    )


def _grown(total: Histogram | None, now: Histogram, last: Histogram | None) -> Histogram:
    """Add the increase since ``last``, None after a restart. New bounds reset the total."""
    if total is None or total.bounds != now.bounds:
        return now
    grown = now if last is None else difference(now, last)
    return Histogram(
        total.bounds,
        tuple(a + b for a, b in zip(total.counts, grown.counts, strict=True)),
        total.sum + grown.sum,
    )


def difference(now: Histogram, before: Histogram | None) -> Histogram:
    """Observations between two states of one total; all of them if the bounds differ."""
    if before is None or before.bounds != now.bounds:
        return now
    return Histogram(
        now.bounds,
        tuple(max(0.0, a - b) for a, b in zip(now.counts, before.counts, strict=True)),
        max(0.0, now.sum - before.sum),
    )


def latency(window: Histogram) -> Latency | None:
    """None if there were no observations."""
    if window.num <= 0:
        return None
    mean = window.sum / window.num
    return Latency(window.num, mean, window.quantile(0.5), window.quantile(0.99))
