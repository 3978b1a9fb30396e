"""Snapshot as Prometheus text or OpenMetrics, by the catalogue's names.

A value that is None has no series. One rank's series carry run, role and rank; a scrape renders the
newest snapshot and touches nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dfx_agent.catalogue import agent as about_agent
from dfx_agent.catalogue import alerting, otlp, performance, trackers
from dfx_agent.exporters.prometheus.engines import add_engines
from dfx_agent.exporters.prometheus.exposition import Encoder
from dfx_agent.exporters.prometheus.faults import add_blindness, add_faults
from dfx_agent.exporters.prometheus.ledger import add_ledger
from dfx_agent.exporters.prometheus.ranks import Page, add_rank, add_silent_parts, add_values
from dfx_agent.exporters.prometheus.signals import add_detector, add_signals
from dfx_agent.exporters.prometheus.verdicts import add_verdicts
from dfx_agent.exporters.state import OtlpRow, OtlpSource, TrackerRow, TrackerSource
from dfx_agent.log import OncePerPlace
from dfx_agent.snapshot import AgentRow, Alerts, AlertSource, RunRow, Source

# sample name -> (labels, value)
Samples = dict[str, list[tuple[dict[str, str], float]]]


class SnapshotCollector(Collector):
    """Everything of one snapshot; used by one registry."""

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
        """A run that cannot be written costs its own series, not those of the others."""
        try:
            _add_run(page, run, node)
        except Exception as error:  # noqa: BLE001 (logged; the series that are missing show it)
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
        """(body, content type) in the newest format that ``accept`` names."""
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
    """Alerts of several ranks that share a name are one series."""
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
