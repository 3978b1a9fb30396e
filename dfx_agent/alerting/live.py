"""Evaluates the alerts of all runs for the page, for /metrics and for receivers.

A separate thread evaluates the latest snapshot, so the agent's reading never waits for it. It does
so every 5 s, and within a second after a symptom has changed, because fast runs make many steps in
5 s. Labels are those of the generated Prometheus rules, so that both have the same alerts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

from dfx_agent.alerting.courier import Courier
from dfx_agent.alerting.evaluator import Evaluator, Firing
from dfx_agent.alerting.notification import (
    Delivered,
    Held,
    Memory,
    Notification,
    fingerprint,
)
from dfx_agent.base.log import OncePerPlace
from dfx_agent.catalogue.alerts.alert import Alert, verdict_kind
from dfx_agent.catalogue.alerts.conditions import Increases, Samples
from dfx_agent.catalogue.alerts.declared.progress import STAGE_STALLED
from dfx_agent.snapshot import AlertRow, Alerts, Incident, RunRow, SignalState, Snapshot, Source

EVALUATE_SECONDS = 5.0
POLL_SECONDS = 1.0
STOP_SECONDS = 5.0

SamplesOf = Callable[[RunRow], Samples]
# receives the firing alerts and returns a snapshot with incidents that contain them
SeeAlerts = Callable[[Sequence[AlertRow]], Snapshot]
# signal state of each run, without building a snapshot
SignalStates = Callable[[], Mapping[str, SignalState | None]]

# areas whose alerts concern the whole run and not one node
_OF_RUN = frozenset({"stability", "rollout"})
_SEVERITIES = ("critical", "warning", "info", "none")
# state of a run without signals
_NO_SIGNALS = SignalState(
    row=0, step=0, signals=(), symptoms=(), is_reward_improving=None, is_latched=False,
    latched_step=None, num_nonfinite_steps={}, num_identical_score_steps=None,
    had_score_signal=False,
)  # fmt: skip


class _RunAlerts:
    """The alerts of one run."""

    def __init__(self, alerts: Sequence[Alert]) -> None:
        self._evaluator = Evaluator(alerts)
        self._increases = Increases(alerts)
        self.since_seconds: dict[str, float] = {}  # fingerprint -> when it began to fire

    def observe(self, state: SignalState, samples: Samples) -> list[tuple[Firing, list[str]]]:
        """Firing alerts, each with lines that name ranks, stages or steps."""
        now = time.monotonic()
        samples = self._increases.with_increases(samples, now)
        firing = self._evaluator.observe(state, samples, now)
        return [
            (fired, fired.alert.listing.lines(samples) if fired.alert.listing else [])
            for fired in firing
        ]


class LiveAlerts:
    """An ``AlertSource``: alerts that fire in the runs of ``source``, delivered to receivers.

    ``samples_of``: returns the samples of a run as in /metrics. ``labels``: added to every alert.
    ``node``: added to alerts that only this node can judge. ``page_url``: called late, because the
    port may not be known before. ``memory``: stores delivered alerts for the next agent, or None.
    """

    def __init__(
        self,
        source: Source,
        samples_of: SamplesOf,
        alerts: Sequence[Alert],
        receivers: Sequence[Courier] = (),
        labels: Mapping[str, str] | None = None,
        page_url: Callable[[], str] = str,
        node: str = "",
        memory: Memory | None = None,
    ) -> None:
        self._source = source
        self._samples_of = samples_of
        self._alerts = alerts
        self._receivers = receivers
        self._labels = dict(labels or {})
        self._page_url = page_url
        self._see_alerts: SeeAlerts | None = None
        self._runs: dict[str, _RunAlerts] = {}
        self._node, self._memory = node, memory
        self._saved: dict[str, Delivered] = (memory.load() if memory else None) or {}
        self._held = Held(self._saved, alerts)
        for receiver in receivers if self._saved else ():
            receiver.resume(self._saved.get(receiver.key, {}))
        self._delivered_keys: set[str] = set(self._held.still(()))
        self._rows: tuple[AlertRow, ...] = ()
        self._time_seconds = 0.0
        self._signal_states: SignalStates | None = None
        self._is_delivered_by_hub: Callable[[], bool] | None = None
        self._called: Callable[[str], str] = str
        self._of_job = {(a.name, a.severity) for a in of_job(alerts)}
        self._taken_over = {named for named in self._of_job if named[0] != STAGE_STALLED.name}
        self._symptoms: dict[str, tuple[object, ...]] = {}
        self._sees_verdicts = False
        self._found: frozenset[tuple[object, ...]] = frozenset()
        self._evaluated_seconds = -EVALUATE_SECONDS
        self._num_evaluations = self._num_errors = 0
        self._log = OncePerPlace("dfx_agent.alerting")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dfx-alerts", daemon=True)

    def join_incidents(self, see_alerts: SeeAlerts) -> None:
        """Make alerts part of incidents. Without this, an alert begins when it first fires."""
        self._see_alerts = see_alerts

    def follow_symptoms(self, signal_states: SignalStates) -> None:
        """Evaluate as soon as a symptom changes. Without this, only every 5 s."""
        self._signal_states = signal_states

    def follow_verdicts(self) -> None:
        """Evaluate as soon as a verdict changes. Without this, only every 5 s."""
        self._sees_verdicts = True

    def share(
        self, is_delivered_by_hub: Callable[[], bool], called: Callable[[str], str] = str
    ) -> None:
        """Share alerts on verdicts with a hub, which delivers them while it is connected.

        These alerts concern the whole job and have no node label. Their labels are equal on all
        nodes and on the hub, so that a receiver sees one alert. ``called``: name of a run there.
        """
        self._is_delivered_by_hub, self._called = is_delivered_by_hub, called

    def start(self) -> None:
        for receiver in self._receivers:
            receiver.start()
        self._thread.start()

    def stop(self) -> None:
        """Evaluate a last time, and let receivers deliver waiting alerts for at most 5 s."""
        self._stop.set()
        if not self._thread.is_alive():
            return
        self._thread.join()
        self._guarded_evaluate()
        for receiver in self._receivers:
            receiver.finish()
        deadline = time.monotonic() + STOP_SECONDS
        for receiver in self._receivers:
            receiver.join(max(0.0, deadline - time.monotonic()))
        self._save_delivered()

    def alerts(self) -> Alerts:
        return Alerts(
            time_seconds=self._time_seconds,
            alerts=self._rows,
            deliveries=tuple(receiver.row() for receiver in self._receivers),
            num_evaluations=self._num_evaluations,
            num_errors=self._num_errors,
        )

    def evaluate(self, snapshot: Snapshot) -> None:
        """Evaluate all runs of this snapshot."""
        now = time.time()
        runs = {run.run: run for run in snapshot.runs}
        self._runs = {name: self._runs.get(name) or _RunAlerts(self._alerts) for name in runs}
        rows: list[AlertRow] = []
        for name, run in runs.items():
            rows += self._guarded_firing(run, self._runs[name], now)
        if self._see_alerts is not None:
            rows = _of_incidents(rows, self._see_alerts(rows))
        rows.sort(key=lambda row: (_SEVERITIES.index(row.severity), row.since_seconds))
        self._rows, self._time_seconds = tuple(rows), now
        self._num_evaluations += 1
        self._deliver(rows, now)

    def _loop(self) -> None:
        while not self._stop.wait(min(POLL_SECONDS, EVALUATE_SECONDS)):
            self._poll()

    def _poll(self) -> None:
        """Evaluate if it is time, or if symptoms or verdicts have changed since the last poll."""
        states = self._signal_states() if self._signal_states is not None else {}
        symptoms = {run: _symptoms(state) for run, state in states.items() if state is not None}
        found = self._found_now()
        now = time.monotonic()
        is_same = symptoms == self._symptoms and found == self._found
        if not is_same or now - self._evaluated_seconds >= EVALUATE_SECONDS:
            self._symptoms, self._found, self._evaluated_seconds = symptoms, found, now
            self._guarded_evaluate()

    def _found_now(self) -> frozenset[tuple[object, ...]]:
        """Findings of all verdicts; the last ones if there is no snapshot."""
        if not self._sees_verdicts:
            return self._found
        try:
            return frozenset(map(_found_by, self._source.snapshot().runs))
        except Exception as error:  # noqa: BLE001 (the next evaluation counts it)
            self._log.error("reading verdicts", error)
            return self._found

    def _guarded_evaluate(self) -> None:
        """Evaluate.

        A failure is counted and shown, and alerts stay unchanged until the next attempt.
        """
        try:
            self.evaluate(self._source.snapshot())
        except Exception as error:  # noqa: BLE001 (counted: dfx_alert_evaluation_errors_total)
            self._num_errors += 1
            self._log.error("evaluating alerts", error)

    def _guarded_firing(self, run: RunRow, state: _RunAlerts, now: float) -> list[AlertRow]:
        """Alerts of a run. If its evaluation fails, those of the last one; other runs continue."""
        try:
            return self._firing(run, state, now)
        except Exception as error:  # noqa: BLE001 (counted: dfx_alert_evaluation_errors_total)
            self._num_errors += 1
            self._log.error(f"evaluating the alerts of run {run.run}", error)
            return [row for row in self._rows if row.run == run.run]

    def _firing(self, run: RunRow, state: _RunAlerts, now: float) -> list[AlertRow]:
        signals = run.signals or _NO_SIGNALS
        rows = []
        for firing, lines in state.observe(signals, self._samples_of(run)):
            labels = self._labels_of(run, firing)
            key = fingerprint(labels)
            since = state.since_seconds.get(key) or self._held.starts_seconds(key) or now
            rows.append(_row(run, firing, labels, since, lines))
        state.since_seconds = {fingerprint(row.labels): row.since_seconds for row in rows}
        return rows

    def _labels_of(self, run: RunRow, firing: Firing) -> dict[str, str]:
        alert = firing.alert
        named = {"alertname": alert.name, "severity": alert.severity, "area": alert.area}
        is_shared = (
            self._is_delivered_by_hub is not None and (alert.name, alert.severity) in self._of_job
        )
        is_of_node = bool(self._node) and alert.area not in _OF_RUN and not is_shared
        node = {"node": self._node} if is_of_node else {}
        called = self._called(run.run) if is_shared else run.run
        return {**self._labels, **named, **node, "run": called}

    def _deliver(self, rows: Sequence[AlertRow], now: float) -> None:
        """Send alerts to the receivers. Inhibited alerts are sent only if they were sent before."""
        delivered = self._held.still(fingerprint(row.labels) for row in rows)
        if self._is_delivered_by_hub is not None and self._is_delivered_by_hub():
            for receiver in self._receivers:
                # the hub judges the whole job and delivers these alerts now
                receiver.drop(self._taken_over)
            delivered = {
                key: alert for key, alert in delivered.items() if alert.named not in self._of_job
            }
            rows = [row for row in rows if (row.alert, row.severity) not in self._of_job]
        for row in rows:
            key = fingerprint(row.labels)
            if key in self._delivered_keys or not row.is_inhibited:
                delivered[key] = self._notification(row)
        self._delivered_keys = set(delivered)
        for receiver in self._receivers:
            receiver.update(delivered, now)
        self._save_delivered()

    def _save_delivered(self) -> None:
        """Store delivered alerts, also of removed receivers: their end may be sent later."""
        if self._memory is None:
            return
        saved = {
            **self._saved,
            **{receiver.key: receiver.delivered() for receiver in self._receivers},
        }
        if saved != self._saved:
            self._saved = saved
            self._memory.save({key: alerts for key, alerts in saved.items() if alerts})

    def _notification(self, row: AlertRow) -> Notification:
        page = self._page_url()
        url = f"{page}/#run={quote(row.run, safe='')}"
        annotations = {
            "summary": row.summary,
            "description": _description(row),
            "runbook_url": f"{page}/runbook#{row.alert.lower()}",
            "dashboard_url": url,
            **({"incident": row.incident} if row.incident else {}),
        }
        return Notification(row.labels, annotations, row.since_seconds, url)


def of_job(alerts: Iterable[Alert]) -> list[Alert]:
    """Alerts on verdicts, which a hub judges too. Other alerts are known only to the node."""
    return [alert for alert in alerts if verdict_kind(alert)]


def _found_by(run: RunRow) -> tuple[object, ...]:
    found = (verdict for verdict in run.verdicts if verdict.state == "found")
    return run.run, *((verdict.kind, verdict.role, verdict.ranks) for verdict in found)


def _symptoms(signals: SignalState) -> tuple[object, ...]:
    """The part of the signal state that does not change in each step of a healthy run."""
    return (
        tuple(row.is_active for row in signals.symptoms),
        signals.is_reward_improving,
        tuple(sorted(signals.num_nonfinite_steps.items())),
        signals.num_identical_score_steps,
        tuple((row.kind, row.signal, row.num_steps) for row in signals.collapses),
    )


def _row(
    run: RunRow, firing: Firing, labels: Mapping[str, str], since: float, lines: Sequence[str]
) -> AlertRow:
    alert = firing.alert
    return AlertRow(
        run=run.run,
        alert=alert.name,
        severity=alert.severity,
        labels=labels,
        summary=alert.summary,
        since_seconds=since,
        since_step=firing.since_step if run.signals else None,
        is_inhibited=firing.is_inhibited,
        lines=tuple(lines),
        meaning=alert.runbook.meaning,
        diagnosis=alert.runbook.diagnosis,
        mitigation=alert.runbook.mitigation,
        verdict=verdict_kind(alert),
    )


def _of_incidents(rows: Sequence[AlertRow], snapshot: Snapshot) -> list[AlertRow]:
    """Alerts with the begin and the sentence of the worst incident that they belong to."""
    incidents: dict[tuple[str, str], Incident] = {}
    for run in snapshot.runs:
        for incident in run.incidents:
            for alert in incident.alerts:
                incidents.setdefault((run.run, alert), incident)
    return [_of_incident(row, incidents.get((row.run, row.alert))) for row in rows]


def _of_incident(row: AlertRow, incident: Incident | None) -> AlertRow:
    if incident is None:
        return row
    is_own = incident.action and incident.action not in row.mitigation
    return replace(
        row,
        # the action of a verdict is more specific than the runbook of the alert
        mitigation=incident.action if is_own else row.mitigation,
        since_seconds=incident.since_seconds,
        since_step=incident.step,
        incident=incident.id,
        sentence=incident.sentence,
    )


def _description(row: AlertRow) -> str:
    """The sentence of the incident; without one, the text of the generated rules."""
    if row.sentence:
        return f"run {row.run}: {row.sentence}"
    listed = f". {'; '.join(row.lines)}" if row.lines else "."
    return f"run {row.run}: {row.summary}{listed}"
