"""Snapshot as Prometheus text or OpenMetrics, by the catalogue's names.

A value that is None has no series. One rank's series carry run, role and rank; a scrape renders the
latest snapshot and reads nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import get_args
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dfx_agent.base.log import OncePerPlace
from dfx_agent.catalogue import agent as about_agent
from dfx_agent.catalogue import (
    alerting,
    engines,
    ledger,
    otlp,
    performance,
    signals,
    trackers,
    verdicts,
)
from dfx_agent.catalogue.alerts.samples import signal_samples
from dfx_agent.exporters.prometheus.exposition import Encoder
from dfx_agent.exporters.prometheus.ranks import (
    Labels,
    Page,
    add_rank,
    add_silent_parts,
    add_values,
)
from dfx_agent.exporters.state import OtlpRow, OtlpSource, TrackerRow, TrackerSource
from dfx_agent.snapshot import (
    AgentRow,
    Alerts,
    AlertSource,
    DetectorParameters,
    FaultPart,
    Incident,
    LedgerRow,
    RunRow,
    Source,
    Verdict,
)
from dfx_agent.snapshot.verdict import NO_STAGE

# kinds of verdicts whose ranks may be in a stage
_OF_A_STAGE = frozenset({"hang", "crash", "straggler"})


def add_verdicts(page: Page, run: RunRow, node: str) -> None:
    """``node``: where the agent runs that concludes it."""
    key = run.run, node
    page.add(verdicts.RUN_STATE, (*key, run.standing.state), 1)
    for incident in run.incidents:
        _add_incident(page, key, incident)
    _add_states(page, key, run.verdicts)
    _add_found(page, key, run.verdicts)


def _add_incident(page: Page, key: Labels, row: Incident) -> None:
    for rank in row.ranks or ("",):
        labels = *key, row.role, row.kind, row.state, row.severity, rank, row.id
        page.add(verdicts.INCIDENT_BEGIN, labels, row.since_seconds)
        if row.step is not None:
            page.add(verdicts.INCIDENT_STEP, labels, row.step)


def _add_states(page: Page, key: Labels, rows: Iterable[Verdict]) -> None:
    """Write a series once if several verdicts share it."""
    unsure = "insufficient evidence"
    states = [
        (*key, row.role, row.kind, row.state, row.cause if row.state == unsure else "")
        for row in rows
    ]
    for labels in dict.fromkeys(states):
        page.add(verdicts.VERDICT_STATE, labels, 1)


def _stage(row: Verdict) -> str:
    """Text for a sentence: a rank outside all stages is not in "idle"."""
    is_outside = row.kind in _OF_A_STAGE and row.stage in {"", "idle"}
    return NO_STAGE if is_outside else row.stage


def _add_found(page: Page, key: Labels, rows: Iterable[Verdict]) -> None:
    """Largest lost time per rank over the verdicts."""
    active: dict[Labels, None] = {}
    lost: dict[Labels, float] = {}
    for row in rows:
        for rank in (row.ranks or ("",)) if row.state == "found" else ():
            blame = *key, row.role, row.kind, row.cause, _stage(row), rank
            active[blame] = None
            if row.kind == "straggler" and row.lost_seconds is not None:
                blamed = *key, row.role, rank
                lost[blamed] = max(lost.get(blamed, 0.0), row.lost_seconds)
    for labels in active:
        page.add(verdicts.VERDICT_ACTIVE, labels, 1)
    for labels, seconds in lost.items():
        page.add(verdicts.STRAGGLER_LOST_SECONDS, labels, seconds)


# sample name -> (labels, value)
Samples = dict[str, list[tuple[dict[str, str], float]]]


class SnapshotCollector(Collector):
    """All metrics of one snapshot, for one registry."""

    def __init__(
        self,
        source: Source,
        alerts: AlertSource | None = None,
        tracked: TrackerSource | None = None,
        pushed: OtlpSource | None = None,
    ) -> None:
        self._log = OncePerPlace("dfx_agent.exporters")
        self._source = source
        self._alerts = alerts
        self._tracked = tracked
        self._pushed = pushed

    def collect(self) -> Iterator[Family]:
        snapshot = self._source.snapshot()
        page = Page()
        _add_agent(page, snapshot.agent)
        if self._alerts is not None:
            _add_alerts(page, self._alerts.alerts(), snapshot.agent.node)
        if self._tracked is not None:
            _add_trackers(page, self._tracked.rows())
        if self._pushed is not None:
            _add_otlp(page, self._pushed.rows())
        for run in snapshot.runs:
            self._add_guarded(page, run, snapshot.agent.node)
        return iter(page.families.values())

    def _add_guarded(self, page: Page, run: RunRow, node: str) -> None:
        """Write one run; if that fails, only its series are missing."""
        try:
            _add_run(page, run, node)
        except Exception as error:  # noqa: BLE001 (logged; the missing series show it)
            self._log.error(f"writing the series of run {run.run}", error)

    def describe(self) -> Iterable[Family]:
        return ()


class PrometheusExporter:
    """``render`` answers one scrape."""

    def __init__(
        self,
        source: Source,
        alerts: AlertSource | None = None,
        tracked: TrackerSource | None = None,
        pushed: OtlpSource | None = None,
    ) -> None:
        self._encoder = Encoder()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(SnapshotCollector(source, alerts, tracked, pushed))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self, accept: str | None) -> tuple[bytes, str]:
        """(body, content type) in the latest format that ``accept`` names."""
        _, content_type = choose_encoder(accept or "")
        is_openmetrics = content_type.startswith("application/openmetrics-text")
        families = self._registry.collect()
        return self._encoder.encode(families, is_openmetrics=is_openmetrics), content_type


def run_samples(run: RunRow, wanted: frozenset[str], node: str = "") -> Samples:
    """One run's samples as a scrape would have them, of the metrics that are ``wanted``."""
    page = Page(wanted)
    _add_run(page, run, node)
    found: Samples = {}
    for name, family in page.families.items():
        if name in wanted:
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _add_agent(page: Page, agent: AgentRow) -> None:
    page.info(about_agent.AGENT_INFO, (agent.version,))
    add_values(page, "agent", (), agent)
    add_faults(page, agent)
    if agent.detector is not None:
        add_detector(page, agent.detector)


def _add_run(page: Page, run: RunRow, node: str) -> None:
    add_blindness(page, run, node)
    page.info(performance.RUN_INFO, (run.run, run.framework, str(run.attempt)))
    add_values(page, "run", (run.run, node), run)
    add_verdicts(page, run, node)
    add_signals(page, run, node)
    add_ledger(page, run, node)
    add_engines(page, run, node)
    for rank in run.ranks:
        add_rank(page, run.run, rank, run.framework)
    add_silent_parts(page, run)


def _add_alerts(page: Page, alerts: Alerts, node: str) -> None:
    """Alerts of several ranks with the same name become one series."""
    for labels in dict.fromkeys((row.run, node, row.alert, row.severity) for row in alerts.alerts):
        page.add(alerting.ALERT_ACTIVE, labels, 1)
    page.add(alerting.EVALUATIONS, (), alerts.num_evaluations)
    page.add(alerting.EVALUATION_ERRORS, (), alerts.num_errors)
    for row in alerts.deliveries:
        receiver = row.kind, row.target
        page.add(alerting.SENT, receiver, row.num_sent)
        page.add(alerting.FAILED, receiver, row.num_failed)
        page.add(alerting.DROPPED, receiver, row.num_dropped)
        page.add(alerting.WAITING, receiver, row.num_waiting)


def _add_otlp(page: Page, rows: Iterable[OtlpRow]) -> None:
    for row in rows:
        page.add(otlp.ACTIVE, (row.signal,), row.is_active)
        page.add(otlp.SENT, (row.signal,), row.num_sent)
        page.add(otlp.FAILED, (row.signal,), row.num_failed)
        if row.signal == "traces":
            page.add(otlp.DROPPED_SPANS, (), row.num_dropped_spans)
            page.add(otlp.MISSED_STEPS, (), row.num_missed_steps)


def _add_trackers(page: Page, rows: Iterable[TrackerRow]) -> None:
    for row in rows:
        labels = row.run, row.tracker
        page.add(trackers.ACTIVE, labels, row.is_active)
        page.add(trackers.STEPS, labels, row.num_steps)
        page.add(trackers.DROPPED_STEPS, labels, row.num_dropped_steps)
        page.add(trackers.LATE_VALUES, labels, row.num_late_values)


def add_engines(page: Page, run: RunRow, node: str) -> None:
    """One series per replica: a sum or a mean would hide a bad replica."""
    for engine in run.engines.replicas if run.engines else ():
        key = run.run, node, engine.replica, engine.dp_rank
        address = urlsplit(engine.url).netloc
        about = "rollout", engine.engine, address, engine.worker, engine.model, engine.pd
        page.info(engines.INFO, (*key, *about))
        add_values(page, "engine", key, engine)


def add_faults(page: Page, agent: AgentRow) -> None:
    """Faults of the whole agent; each part has a counter from the start."""
    page.add(about_agent.AGENT_BLIND, (), agent.blind is not None)
    if agent.read_seconds is not None:
        page.add(about_agent.READ_AGE_SECONDS, (), _age_seconds(agent.read_seconds))
    for part in get_args(FaultPart):
        page.add(about_agent.AGENT_FAULTS, (part,), agent.num_faults.get(part, 0))


def add_blindness(page: Page, run: RunRow, node: str) -> None:
    """Faults of one run."""
    page.add(about_agent.RUN_BLIND, (run.run, node), run.blind is not None)
    if run.judged_seconds:
        oldest = min(run.judged_seconds.values())
        page.add(about_agent.JUDGED_AGE_SECONDS, (run.run, node), _age_seconds(oldest))


def _age_seconds(seconds: float) -> float:
    """0 if the machine's clock was set back meanwhile."""
    return max(0.0, time.time() - seconds)


def add_signals(page: Page, run: RunRow, node: str) -> None:
    """No series for a run without signals."""
    if run.signals is None:
        return
    page.add(signals.LATE_SIGNALS, (run.run, node), run.num_late_signals)
    for metric, labels, value in signal_samples(run.signals):
        page.add(metric, (run.run, node, *(labels[name] for name in metric.labels[2:])), value)


def add_detector(page: Page, detector: DetectorParameters) -> None:
    """Parameters of the detector, so that its values can be explained from metrics alone."""
    names = signals.DETECTOR.labels
    page.info(signals.DETECTOR, tuple(f"{getattr(detector, name):g}" for name in names))
    for row in detector.signals:
        least = "" if row.least_value is None else f"{row.least_value:g}"
        directions = " ".join(row.directions)
        labels = (row.signal, row.symptom, directions, least, f"{row.scale_floor:g}")
        page.info(signals.SIGNAL_PARAMETERS, labels)


def add_ledger(page: Page, run: RunRow, node: str) -> None:
    """All boundaries of all ranks; none for a run without a ledger."""
    for rank in run.ranks:
        for row in rank.ledger:
            _add_row(page, (run.run, rank.role, rank.rank, row.boundary), row)
    if run.ledger is not None:
        page.add(ledger.JUDGED_STEPS, (run.run, node), run.ledger.num_judged_steps)
        page.add(ledger.SKIPPED_STEPS, (run.run, node), run.ledger.num_skipped_steps)
        page.add(ledger.INCOMPLETE, (run.run, node), run.ledger.num_incomplete_crossings)
        for found in run.ledger.mismatches:
            page.add(ledger.MISMATCHES, (run.run, node, found.boundary, found.kind), found.count)


def _add_row(page: Page, key: Labels, row: LedgerRow) -> None:
    page.add(ledger.BATCHES, key, row.num_crossings)
    page.add(ledger.SAMPLES, key, row.num_samples)
    page.add(ledger.NONFINITE, key, row.num_nonfinite)
    page.add(ledger.MISALIGNED, key, row.num_misaligned)
    page.add(ledger.UNREAD, key, row.num_unread)
    page.add(ledger.LEFT_OUT, key, row.num_left_out)
    page.info(ledger.SCHEMA, (*key, row.schema))
    page.add(ledger.SHAPES, key, int(row.shapes, 16))
    for metric, labels, value in (
        (ledger.TOKENS, key, row.num_tokens),
        (ledger.MASK_RATIO, key, row.mask_ratio),
        (ledger.SAMPLED, key, row.num_sampled),
        (ledger.GROUP_SAMPLES, (*key, "min"), row.smallest_group),
        (ledger.GROUP_SAMPLES, (*key, "max"), row.largest_group),
    ):
        if value is not None:
            page.add(metric, labels, value)
