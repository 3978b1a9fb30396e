"""Counters and histograms that go on over a restart of the engine, and their increase in a window.

Engines count from their own start. A value that is lower than the one before, or another start of
the process, means a new start: what it says then is its increase, as Prometheus takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfx_agent.snapshot import Histogram, Latency


@dataclass
class Totals:
    """Of one part of an engine: ``counters`` and ``histograms`` never fall."""

    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    _told_counters: Mapping[str, float] = field(default_factory=dict)
    _told_histograms: Mapping[str, Histogram] = field(default_factory=dict)

    def add(
        self,
        counters: Mapping[str, float],
        histograms: Mapping[str, Histogram],
        *,
        is_restart: bool = False,
    ) -> bool:
        """What it says now; returns whether it began anew since the last time."""
        is_restart = is_restart or self._has_fallen(counters, histograms)
        for name, value in counters.items():
            before = 0.0 if is_restart else self._told_counters.get(name, 0.0)
            self.counters[name] = self.counters.get(name, 0.0) + value - before
        for name, told in histograms.items():
            last = None if is_restart else self._told_histograms.get(name)
            self.histograms[name] = _grown(self.histograms.get(name), told, last)
        self._told_counters = {**({} if is_restart else self._told_counters), **counters}
        self._told_histograms = {**({} if is_restart else self._told_histograms), **histograms}
        return is_restart

    def _has_fallen(
        self, counters: Mapping[str, float], histograms: Mapping[str, Histogram]
    ) -> bool:
        fell = any(value < self._told_counters.get(name, 0.0) for name, value in counters.items())
        return fell or any(
            name in self._told_histograms and not _goes_on(self._told_histograms[name], told)
            for name, told in histograms.items()
        )


def _goes_on(before: Histogram, now: Histogram) -> bool:
    return before.bounds == now.bounds and all(
        old <= new for old, new in zip(before.counts, now.counts, strict=True)
    )


def _grown(total: Histogram | None, told: Histogram, last: Histogram | None) -> Histogram:
    """``last`` is what it told before, None after a start. Other bounds begin a new total."""
    if total is None or total.bounds != told.bounds:
        return told
    grown = told if last is None else difference(told, last)
    return Histogram(
        total.bounds,
        tuple(a + b for a, b in zip(total.counts, grown.counts, strict=True)),
        total.sum + grown.sum,
    )


def difference(now: Histogram, before: Histogram | None) -> Histogram:
    """What was observed between two states of one total; all of it where the bounds differ."""
    if before is None or before.bounds != now.bounds:
        return now
    return Histogram(
        now.bounds,
        tuple(max(0.0, a - b) for a, b in zip(now.counts, before.counts, strict=True)),
        max(0.0, now.sum - before.sum),
    )


def latency(window: Histogram) -> Latency | None:
    """None where nothing was observed."""
    if window.num <= 0:
        return None
    mean = window.sum / window.num
    return Latency(window.num, mean, window.quantile(0.5), window.quantile(0.99))
