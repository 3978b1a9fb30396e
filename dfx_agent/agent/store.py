"""Scalars over steps: one series per native key of a run, merged over ranks, bounded."""

from __future__ import annotations

from dataclasses import dataclass, field

from dfx_agent.snapshot import Moments

_MAX_POINTS = 5000
_RECENT_STEPS = 8


@dataclass
class _Series:
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    recent: dict[int, dict[str, float]] = field(default_factory=dict)
    attempt: int = 0
    frozen: tuple[tuple[int, ...], tuple[float, ...]] | None = None


class ScalarStore:
    """History of one run. Memory: 16 bytes a point, at most 5,000 points a key."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        self.num_stale = 0

    def keys(self) -> list[str]:
        return list(self._series)

    def add(self, key: str, rank: str, attempt: int, step: int | None, value: float) -> None:
        """One rank's value. A rank that reports a step again replaces its own value."""
        series = self._series.setdefault(key, _Series())
        if step is None:
            step = series.steps[-1] + 1 if series.steps else 0
        if attempt > series.attempt:
            series.attempt = attempt
            self._forget_from(series, step)
        known = series.recent.get(step)
        if known is None and series.steps and step <= series.steps[-1]:
            self.num_stale += 1
            return
        if known is None:
            known = series.recent[step] = {}
            self._append(series, step)
        known[rank] = value
        series.values[series.steps.index(step, -min(_RECENT_STEPS, len(series.steps)))] = (
            self._moments(known).mean
        )
        series.frozen = None

    def latest(self, key: str) -> tuple[int, Moments] | None:
        """(step, moments over ranks) of the newest step; None when nothing is left."""
        series = self._series[key]
        if not series.steps:
            return None
        step = series.steps[-1]
        ranks = series.recent.get(step)
        return step, self._moments(ranks) if ranks else Moments.of(series.values[-1])

    def history(self, key: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """(steps, means), oldest first; KeyError for an unknown key."""
        series = self._series[key]
        if series.frozen is None:
            series.frozen = tuple(series.steps), tuple(series.values)
        return series.frozen

    @staticmethod
    def _moments(ranks: dict[str, float]) -> Moments:
        values = list(ranks.values())
        return Moments(len(values), sum(values), min(values), max(values))

    @staticmethod
    def _append(series: _Series, step: int) -> None:
        series.steps.append(step)
        series.values.append(0.0)
        if len(series.steps) > _MAX_POINTS:
            del series.steps[: _MAX_POINTS // 10], series.values[: _MAX_POINTS // 10]
        while len(series.recent) > _RECENT_STEPS:
            del series.recent[next(iter(series.recent))]

    @staticmethod
    def _forget_from(series: _Series, step: int) -> None:
        """A restarted run repeats steps: what the dead attempt reported for them goes."""
        while series.steps and series.steps[-1] >= step:
            series.recent.pop(series.steps.pop(), None)
            series.values.pop()
        series.frozen = None
