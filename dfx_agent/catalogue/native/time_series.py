"""Scalars over steps: one series per native key of a run, merged over ranks, bounded.

Values of the latest steps are stored by rank and merged on request. Only the mean of older steps is
stored. A run logs far more often than people read the values.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from dfx_agent.catalogue.native import load
from dfx_agent.catalogue.spec import by_name
from dfx_agent.snapshot import Moments, ScalarHistory, ScalarRow

_METRICS = by_name()
MAX_KEYS = 10_000
_MAX_POINTS = 5000
_RECENT_STEPS = 8
_MAX_TIMED_STEPS = 1000  # a value that is later than that is stored, but not read again
_LARGEST_STEP = 2**63 - 1


@dataclass
class _Series:
    steps: array[int] = field(default_factory=lambda: array("q"))
    means: array[float] = field(default_factory=lambda: array("d"))  # without the recent steps
    recent: dict[int, dict[str, float]] = field(default_factory=dict)
    attempt: int = 0
    # of removed ranks, by recent step
    dropped: dict[int, Moments] = field(default_factory=dict)

    def mean(self, i: int) -> float:
        """Over ranks, of the i-th step."""
        if i < len(self.means):
            return self.means[i]
        step = self.steps[i]
        values = self.recent[step].values()
        return self.moments(step).mean if step in self.dropped else sum(values) / len(values)

    def moments(self, step: int) -> Moments:
        """Over ranks, of a recent step."""
        values = list(self.recent[step].values())
        dropped = self.dropped.get(step)
        if not values:
            return dropped or Moments.of_value(math.nan)
        found = Moments(len(values), sum(values), min(values), max(values))
        return found if dropped is None else found.merge(dropped)


class ScalarStore:
    """History of one run. Memory: 16 bytes a point, at most 5,000 points a key, 10,000 keys.

    ``num_stale``: values that are in no history, of a step long past or of one key too many.
    """

    def __init__(self, num_recent_steps: int = _RECENT_STEPS) -> None:
        """``num_recent_steps``: by how much ranks may be apart."""
        self._series: dict[str, _Series] = {}
        self._num_recent_steps = num_recent_steps
        self.num_stale = 0
        self.now_seconds = 0.0  # set it before values are added
        self._added_seconds: dict[int, float] = {}  # of the latest value, by step

    def keys(self) -> list[str]:
        return list(self._series)

    def has(self, key: str) -> bool:
        return key in self._series

    def add(self, key: str, rank: str, attempt: int, step: int | None, value: float) -> None:
        """One rank's value. A rank that reports a step again replaces its own value."""
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= MAX_KEYS:
                self.num_stale += 1
                return
            series = self._series[key] = _Series()
        if step is None:
            step = min(series.steps[-1] + 1, _LARGEST_STEP) if series.steps else 0
        if attempt > series.attempt:
            series.attempt = attempt
            self._forget_from(series, step)
        values = series.recent.get(step)
        if values is None:
            if series.steps and step <= series.steps[-1]:
                self.num_stale += 1
                return
            values = self._begin(series, step)
        values[rank] = value
        self._added_seconds[step] = self.now_seconds

    def remove_rank(self, rank: str) -> None:
        """Moves the values of an ended rank into the means; they are no longer stored by rank."""
        for series in self._series.values():
            for step, ranks in series.recent.items():
                value = ranks.pop(rank, None)
                if value is not None:
                    before, one = series.dropped.get(step), Moments.of_value(value)
                    series.dropped[step] = one if before is None else before.merge(one)

    def latest(self, key: str) -> tuple[int, Moments] | None:
        """(step, moments over ranks) of the latest step; None when nothing is left."""
        series = self._series[key]
        if not series.steps:
            return None
        step = series.steps[-1]
        is_recent = step in series.recent
        return step, series.moments(step) if is_recent else Moments.of_value(series.means[-1])

    def history(self, key: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """(steps, means), oldest first; KeyError for an unknown key."""
        series = self._series[key]
        recent_means = (series.moments(step).mean for step in series.recent)
        return tuple(series.steps), (*series.means, *recent_means)

    @property
    def first_step(self) -> int:
        """The earliest step that any history begins with; 0 without one."""
        return min((series.steps[0] for series in self._series.values() if series.steps), default=0)

    def after(
        self, step: int | None, since_seconds: float | None = None
    ) -> dict[int, dict[str, float]]:
        """Step -> key -> mean, of the steps after ``step``; None: of all stored steps.

        ``since_seconds``: and of earlier steps with a value that was added since then.
        """
        found: dict[int, dict[str, float]] = {}
        late = () if since_seconds is None or step is None else self._changed(step, since_seconds)
        for key, series in self._series.items():
            first = 0 if step is None else bisect_right(series.steps, step)
            for i in range(first, len(series.steps)):
                found.setdefault(series.steps[i], {})[key] = series.mean(i)
            for number in late:
                i = bisect_left(series.steps, number, 0, first)
                if i < first and series.steps[i] == number:
                    found.setdefault(number, {})[key] = series.mean(i)
        return found

    def _changed(self, until: int, since_seconds: float) -> list[int]:
        """Steps up to ``until`` with a value that was added since then."""
        return [
            step
            for step, seconds in self._added_seconds.items()
            if seconds >= since_seconds and step <= until
        ]

    def _begin(self, series: _Series, step: int) -> dict[str, float]:
        series.steps.append(step)
        ranks = series.recent[step] = {}
        if len(series.recent) > self._num_recent_steps:
            settled = next(iter(series.recent))
            series.means.append(series.moments(settled).mean)
            del series.recent[settled]
            series.dropped.pop(settled, None)
        if len(self._added_seconds) > _MAX_TIMED_STEPS:
            del self._added_seconds[next(iter(self._added_seconds))]
        if len(series.steps) > _MAX_POINTS:
            del series.steps[: _MAX_POINTS // 10], series.means[: _MAX_POINTS // 10]
        return ranks

    @staticmethod
    def _forget_from(series: _Series, step: int) -> None:
        """A restarted run repeats steps: what the dead attempt reported for them goes."""
        while series.steps and series.steps[-1] >= step:
            dropped_step = series.steps.pop()
            series.dropped.pop(dropped_step, None)
            if series.recent.pop(dropped_step, None) is None:
                series.means.pop()


def scalar_row(
    framework: str, key: str, step: int | None, seconds: float, moments: Moments
) -> ScalarRow:
    """``framework``: whose name ``key`` is."""
    native = load(framework).find(key)
    if native is None:
        return ScalarRow(key, None, {}, step, seconds, moments)
    scale = native.scale
    if scale != 1.0:
        ends = moments.min * scale, moments.max * scale
        moments = Moments(moments.count, moments.sum * scale, min(ends), max(ends))
    return ScalarRow(key, native.metric, native.labels, step, seconds, moments)


def scalar_history(framework: str, store: ScalarStore, key: str) -> ScalarHistory:
    """One native key over steps, in the unit of its metric. KeyError for an unknown key."""
    steps, values = store.history(key)
    native = load(framework).find(key)
    if native is None:
        return ScalarHistory(key, None, "", steps, values)
    if native.scale != 1.0:
        values = tuple(value * native.scale for value in values)
    return ScalarHistory(key, native.metric, _METRICS[native.metric].unit, steps, values)
