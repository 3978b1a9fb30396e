"""The alerts of every run, evaluated beside the agent: for the page, for /metrics, for receivers.

A thread of its own looks at the newest snapshot; the agent's reading never waits for it. It
evaluates every 5 s, and within a second where a symptom has come or gone: a run that makes three
steps a second is 15 steps further after 5 s. The labels are those that the generated
Prometheus rules give, so that both name one alert alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

from dfx_agent.alerting.evaluator import Evaluator, Firing
from dfx_agent.alerting.notification import Held, Memory, Notification, Receiver, Told, fingerprint
from dfx_agent.base.log import OncePerPlace
from dfx_agent.catalogue.alerts.alert import Alert, verdict_kind
from dfx_agent.catalogue.alerts.conditions import Samples
from dfx_agent.catalogue.alerts.declared.progress import STAGE_STALLED
from dfx_agent.catalogue.alerts.increases import Increases
from dfx_agent.snapshot import AlertRow, Alerts, Incident, RunRow, SignalState, Snapshot, Source

EVALUATE_SECONDS = 5.0
LOOK_SECONDS = 1.0
STOP_SECONDS = 5.0

SamplesOf = Callable[[RunRow], Samples]
# takes what fires now, gives the snapshot whose incidents hold it
SeeAlerts = Callable[[Sequence[AlertRow]], Snapshot]
# what is known of each run's signals, at the price of a look: no snapshot is made
SignalStates = Callable[[], Mapping[str, SignalState | None]]

# areas that are judged by values of the whole run, whichever node reports them
_OF_RUN = frozenset({"stability", "rollout"})
_SEVERITIES = ("critical", "warning", "info", "none")
# a run without signals has no steps that could keep an alert
_NO_SIGNALS = SignalState(
    row=0, step=0, signals=(), symptoms=(), is_reward_improving=None, is_latched=False,
    latched_step=None, num_nonfinite_steps={}, num_identical_score_steps=None,
    had_score_signal=False,
)  # fmt: skip


class _Run:
    """One run's alerts; ``since_seconds``: fingerprint -> when it was first seen to fire."""

    def __init__(self, alerts: Sequence[Alert]) -> None:
        self._evaluator = Evaluator(alerts)
        self._increases = Increases(alerts)
        self.since_seconds: dict[str, float] = {}

    def observe(self, state: SignalState, samples: Samples) -> list[tuple[Firing, list[str]]]:
        """What fires, each with the lines that name ranks, stages or steps."""
        now = time.monotonic()
        samples = self._increases.with_increases(samples, now)
        firing = self._evaluator.observe(state, samples, now)
        return [(f, f.alert.listing.lines(samples) if f.alert.listing else []) for f in firing]


class LiveAlerts:
    """An ``AlertSource``: what fires in the runs of ``source``, told to the receivers.

    ``samples_of`` gives one run's samples as /metrics has them; ``labels`` go onto every alert,
    ``node`` onto those about what only this node sees; ``page_url`` is asked late, the port may not
    be known before. ``memory`` keeps what was told, None: nothing outlives this agent.
    """

    def __init__(
        self,
        source: Source,
        samples_of: SamplesOf,
        alerts: Sequence[Alert],
        receivers: Sequence[Receiver] = (),
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
        self._runs: dict[str, _Run] = {}
        self._node, self._memory = node, memory
        self._kept: dict[str, Told] = (memory.load() if memory else None) or {}
        self._held = Held(self._kept, alerts)
        for receiver in receivers if self._kept else ():
            receiver.resume(self._kept.get(receiver.key, {}))
        self._told: set[str] = set(self._held.still(()))
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
        """Alerts are part of incidents; without, one begins when it was first seen to fire."""
        self._see_alerts = see_alerts

    def follow_symptoms(self, signal_states: SignalStates) -> None:
        """Evaluate as soon as one comes or goes; without, every 5 s only."""
        self._signal_states = signal_states

    def follow_verdicts(self) -> None:
        """Evaluate as soon as one finds something else; without, every 5 s only."""
        self._sees_verdicts = True

    def share(
        self, is_delivered_by_hub: Callable[[], bool], called: Callable[[str], str] = str
    ) -> None:
        """Alerts on verdicts are of the job: no node is named, and the hub delivers while it can.

        They have the same labels on each node and on the hub, so that they are one for a receiver.
        ``called``: what the hub calls a run.
        """
        self._is_delivered_by_hub, self._called = is_delivered_by_hub, called

    def start(self) -> None:
        for receiver in self._receivers:
            receiver.start()
        self._thread.start()

    def stop(self) -> None:
        """Evaluate once more, and let the receivers deliver what waits, a few seconds at most."""
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
        self._keep_told()

    def alerts(self) -> Alerts:
        return Alerts(
            time_seconds=self._time_seconds,
            alerts=self._rows,
            deliveries=tuple(receiver.row() for receiver in self._receivers),
            num_evaluations=self._num_evaluations,
            num_errors=self._num_errors,
        )

    def evaluate(self, snapshot: Snapshot) -> None:
        """Look at every run of this snapshot."""
        now = time.time()
        runs = {run.run: run for run in snapshot.runs}
        self._runs = {name: self._runs.get(name) or _Run(self._alerts) for name in runs}
        rows: list[AlertRow] = []
        for name, run in runs.items():
            rows += self._guarded_firing(run, self._runs[name], now)
        if self._see_alerts is not None:
            rows = _of_incidents(rows, self._see_alerts(rows))
        rows.sort(key=lambda row: (_SEVERITIES.index(row.severity), row.since_seconds))
        self._rows, self._time_seconds = tuple(rows), now
        self._num_evaluations += 1
        self._tell(rows, now)

    def _loop(self) -> None:
        while not self._stop.wait(min(LOOK_SECONDS, EVALUATE_SECONDS)):
            self._look()

    def _look(self) -> None:
        """Evaluate where it is time to, or where what is seen is other than at the last look."""
        states = self._signal_states() if self._signal_states is not None else {}
        symptoms = {run: _symptoms(state) for run, state in states.items() if state is not None}
        found = self._found_now()
        now = time.monotonic()
        is_same = symptoms == self._symptoms and found == self._found
        if not is_same or now - self._evaluated_seconds >= EVALUATE_SECONDS:
            self._symptoms, self._found, self._evaluated_seconds = symptoms, found, now
            self._guarded_evaluate()

    def _found_now(self) -> frozenset[tuple[object, ...]]:
        """What verdicts have found, by run; as before where nothing can be seen."""
        if not self._sees_verdicts:
            return self._found
        try:
            return frozenset(map(_found_by, self._source.snapshot().runs))
        except Exception as error:  # noqa: BLE001 (the next evaluation counts it)
            self._log.error("looking at verdicts", error)
            return self._found

    def _guarded_evaluate(self) -> None:
        """A failure is counted and shown; alerts stay as they were until the next attempt."""
        try:
            self.evaluate(self._source.snapshot())
        except Exception as error:  # noqa: BLE001 (counted: dfx_alert_evaluation_errors_total)
            self._num_errors += 1
            self._log.error("evaluating alerts", error)

    def _guarded_firing(self, run: RunRow, state: _Run, now: float) -> list[AlertRow]:
        """Of a run that cannot be evaluated what fired before: the others are told of as ever."""
        try:
            return self._firing(run, state, now)
        except Exception as error:  # noqa: BLE001 (counted: dfx_alert_evaluation_errors_total)
            self._num_errors += 1
            self._log.error(f"evaluating the alerts of run {run.run}", error)
            return [row for row in self._rows if row.run == run.run]

    def _firing(self, run: RunRow, state: _Run, now: float) -> list[AlertRow]:
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

    def _tell(self, rows: Sequence[AlertRow], now: float) -> None:
        """What is inhibited is not told; what was told before goes on until it ends."""
        told = self._held.still(fingerprint(row.labels) for row in rows)
        if self._is_delivered_by_hub is not None and self._is_delivered_by_hub():
            for receiver in self._receivers:
                # what was said since a part alone is seen is over when the hub speaks of the whole
                receiver.let_go(self._taken_over)
            told = {key: each for key, each in told.items() if each.named not in self._of_job}
            rows = [row for row in rows if (row.alert, row.severity) not in self._of_job]
        for row in rows:
            key = fingerprint(row.labels)
            if key in self._told or not row.is_inhibited:
                told[key] = self._notification(row)
        self._told = set(told)
        for receiver in self._receivers:
            receiver.update(told, now)
        self._keep_told()

    def _keep_told(self) -> None:
        """Of receivers that are gone too: who asks them again later may still tell the end."""
        if self._memory is None:
            return
        kept = {**self._kept, **{r.key: r.told() for r in self._receivers}}
        if kept != self._kept:
            self._kept = kept
            self._memory.save({receiver: told for receiver, told in kept.items() if told})

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
    """Those on verdicts, which a hub judges too; of the others only the node knows."""
    return [alert for alert in alerts if verdict_kind(alert)]


def _found_by(run: RunRow) -> tuple[object, ...]:
    found = (verdict for verdict in run.verdicts if verdict.state == "found")
    return run.run, *((verdict.kind, verdict.role, verdict.ranks) for verdict in found)


def _symptoms(signals: SignalState) -> tuple[object, ...]:
    """What changes with a judgement, and not with each step of a sound run."""
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
    """Each alert with the begin and the sentence of the worst incident that it fires for."""
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
        # where the verdict knows better what to do than the runbook of the alert
        mitigation=incident.action if is_own else row.mitigation,
        since_seconds=incident.since_seconds,
        since_step=incident.step,
        incident=incident.id,
        sentence=incident.sentence,
    )


def _description(row: AlertRow) -> str:
    """The incident's sentence; without one, the words of the generated rules."""
    if row.sentence:
        return f"run {row.run}: {row.sentence}"
    listed = f". {'; '.join(row.lines)}" if row.lines else "."
    return f"run {row.run}: {row.summary}{listed}"
