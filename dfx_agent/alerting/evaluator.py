"""Evaluates which alerts of one run fire, step by step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dfx_agent.catalogue.alerts.alert import RUN_ENDED, Alert, inhibited, inhibitions
from dfx_agent.catalogue.alerts.conditions import Condition, Grows, Rows, Samples, Series, parts_of
from dfx_agent.catalogue.alerts.declared import ALERTS
from dfx_agent.catalogue.alerts.samples import samples_of
from dfx_agent.catalogue.spec import Metric
from dfx_agent.snapshot import SignalState


@dataclass(frozen=True)
class Firing:
    """An alert that fires after a step."""

    alert: Alert
    since_step: int
    is_inhibited: bool
    """Whether another firing alert covers this one."""
    symptoms: dict[str, int]
    """Families of signals that are active now -> step at which each began."""


class Evaluator:
    """Evaluates the alerts of one run. Call ``observe`` for each state, in order."""

    def __init__(self, alerts: Sequence[Alert] = ALERTS) -> None:
        self._alerts = alerts
        self._inhibitions = inhibitions(alerts)
        # index in ``alerts`` -> step since which it fires, and the last row its condition held
        self._since: dict[int, int] = {}
        self._held_row: dict[int, int] = {}
        # when the condition began to hold, for alerts with a minimum duration
        self._holds_since_seconds: dict[int, float] = {}
        self._conditions = Conditions([alert.condition for alert in alerts])

    def observe(
        self, state: SignalState, samples: Samples | None = None, now_seconds: float = 0.0
    ) -> list[Firing]:
        """All alerts that fire after this step, including inhibited ones, in catalogue order.

        ``samples``: samples of the run; None for those of the state alone. The same row may be
        observed several times. ``keep_steps`` of an alert counts rows, ``for_seconds`` counts
        seconds of ``now_seconds`` (monotonic).
        """
        samples = samples_of(state) if samples is None else samples
        holding = self._conditions.holding(samples)
        if not (holding or self._since or self._holds_since_seconds):
            return []
        has_ended = RUN_ENDED.holds(samples)  # no further step, so alerts are not retained
        for i, alert in enumerate(self._alerts):
            if i in holding:
                began_seconds = self._holds_since_seconds.setdefault(i, now_seconds)
                if i in self._since or now_seconds - began_seconds >= alert.for_seconds:
                    self._since.setdefault(i, state.step)
                    self._held_row[i] = state.row
                continue
            self._holds_since_seconds.pop(i, None)
            if i in self._since and (has_ended or not self._is_retained(i, state.row)):
                del self._since[i]
        places = sorted(self._since)
        spoken_for = inhibited([self._alerts[i] for i in places], self._inhibitions)
        symptoms = onset_steps(state)
        return [
            Firing(self._alerts[i], self._since[i], place in spoken_for, symptoms)
            for place, i in enumerate(places)
        ]

    def _is_retained(self, i: int, row: int) -> bool:
        # a restarted run counts its rows from 0
        self._held_row[i] = min(self._held_row[i], row)
        num_rows = row - self._held_row[i]
        return self._alerts[i].keep_steps > 0 and num_rows <= self._alerts[i].keep_steps


class Conditions:
    """Conditions of one run. Each is evaluated only if a series that it reads has changed."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self._conditions = conditions
        # sample name -> indices of the conditions that read it
        self._readers: dict[str, set[int]] = {}
        for i, condition in enumerate(conditions):
            read: Iterator[Grows | Series] = parts_of(condition, Grows, Series)
            for part in read:
                self._readers.setdefault(part.sample_name, set()).add(i)
        self._latest: dict[str, Rows] = dict.fromkeys(self._readers, ())
        self._holding: set[int] = set()
        self._changed = set(range(len(conditions)))

    def holding(self, samples: Samples) -> Collection[int]:
        """Indices of the conditions that hold."""
        changed, self._changed = self._changed, set()
        for name, latest in self._latest.items():
            rows = samples.get(name, ())
            # a caller may reuse a list, so a copy is stored and compared
            if rows is not latest and (stored := tuple(rows)) != latest:
                self._latest[name] = stored
                changed |= self._readers[name]
        for i in changed:
            if self._conditions[i].holds(samples):
                self._holding.add(i)
            else:
                self._holding.discard(i)
        return self._holding


def onset_steps(state: SignalState) -> dict[str, int]:
    """Active family -> step at which its change began (the earlier of two directions)."""
    onsets: dict[str, int] = {}
    for row in state.symptoms:
        if row.is_active and row.onset_step is not None:
            onsets[row.symptom] = min(row.onset_step, onsets.get(row.symptom, row.onset_step))
    return onsets


def metrics_read(alerts: Iterable[Alert]) -> frozenset[str]:
    """Names of the metrics that these alerts read."""
    return frozenset(metric.name for alert in alerts for metric in parts_of(alert, Metric))


def signals_read(alerts: Iterable[Alert]) -> frozenset[tuple[str, str]]:
    """(metric, training signal) of the series of single signals that these alerts read."""
    return frozenset(
        (series.metric.name, signal)
        for alert in alerts
        for series in parts_of(alert.condition, Series)
        for signal in series.where.get("signal", ())
    )
