"""Snapshot as Prometheus text or OpenMetrics, by the catalogue's names.

A value that is None has no series. One rank's series carry run, role and rank; a scrape renders the
newest snapshot and touches nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dfx_agent.exporters.exposition import Encoder
from dfx_agent.metrics import agent as about_agent
from dfx_agent.metrics import balance, performance
from dfx_agent.metrics.spec import Metric, by_name
from dfx_agent.snapshot import AgentRow, RankRow, RunRow, Source

_METRICS = by_name()
_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "info": InfoMetricFamily}

Labels = tuple[str, ...]


class _Page:
    """Families in the order of first use, one per metric."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def add(self, metric: Metric, labels: Labels, value: float) -> None:
        self._family(metric).add_metric(labels, value)  # type: ignore[attr-defined]

    def info(self, metric: Metric, labels: Labels) -> None:
        values = dict(zip(metric.labels, labels, strict=True))
        self._family(metric, labels=()).add_metric((), values)  # type: ignore[attr-defined]

    def _family(self, metric: Metric, labels: Labels | None = None) -> Family:
        family = self.families.get(metric.name)
        if family is None:
            unit = metric.unit if metric.name.endswith(f"_{metric.unit}") else ""
            kind = _FAMILIES[metric.kind]
            names = metric.labels if labels is None else labels
            family = kind(
                metric.name, metric.help, labels=names, **({"unit": unit} if unit else {})
            )
            self.families[metric.name] = family
        return family


class SnapshotCollector(Collector):
    """Everything of one snapshot; used by one registry."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Family]:
        snapshot = self._source.snapshot()
        page = _Page()
        _add_agent(page, snapshot.agent)
        for run in snapshot.runs:
            _add_run(page, run)
        return iter(page.families.values())

    def describe(self) -> Iterable[Family]:
        return ()


class PrometheusExporter:
    """``render`` answers one scrape."""

    def __init__(self, source: Source) -> None:
        self._encoder = Encoder()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(SnapshotCollector(source))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self, accept: str | None) -> tuple[bytes, str]:
        """(body, content type) in the newest format that ``accept`` names."""
        _, content_type = choose_encoder(accept or "")
        is_openmetrics = content_type.startswith("application/openmetrics-text")
        families = self._registry.collect()
        return self._encoder.encode(families, is_openmetrics=is_openmetrics), content_type


def _add_agent(page: _Page, agent: AgentRow) -> None:
    page.info(about_agent.AGENT_INFO, (agent.version,))
    page.add(about_agent.AGENT_POLLS, (), agent.num_polls)
    page.add(about_agent.AGENT_POLL_SECONDS, (), agent.poll_elapsed_seconds)
    page.add(about_agent.AGENT_SEGMENTS, (), agent.num_segments)
    page.add(about_agent.AGENT_REAPED, (), agent.num_reaped_segments)
    page.add(about_agent.EXPORTER_ERRORS, (), agent.num_exporter_errors)
    kinds = [problem.kind for problem in agent.problems]
    for kind in sorted(set(kinds)):
        page.add(about_agent.AGENT_PROBLEMS, (kind,), kinds.count(kind))


def _add_run(page: _Page, run: RunRow) -> None:
    page.info(performance.RUN_INFO, (run.run, run.framework, str(run.attempt)))
    page.add(about_agent.STALE_SCALARS, (run.run,), run.num_stale_scalars)
    for row in {row.role: row for row in run.steps}.values():
        if row.bubble_ratio is not None:
            page.add(performance.BUBBLE_RATIO, (run.run, row.role), row.bubble_ratio)
    for rank in run.ranks:
        key = (run.run, rank.role, rank.rank)
        _add_rank(page, key, rank)
        _add_last_step(page, key, rank)
        _add_scalars(page, key, rank, run.framework)


def _add_rank(page: _Page, key: Labels, rank: RankRow) -> None:
    local_rank, world_size = (
        "" if value is None else str(value) for value in (rank.local_rank, rank.world_size)
    )
    page.info(balance.RANK_INFO, (*key, rank.node, local_rank, world_size, str(rank.pid)))
    page.add(balance.RANK_UP, key, rank.state in ("live", "unknown"))
    if rank.step is not None:
        page.add(performance.STEP, key, rank.step)
    if rank.policy_version is not None:
        page.add(performance.POLICY_VERSION, key, rank.policy_version)
    totals = rank.totals
    page.add(balance.WALL_SECONDS, key, totals.wall_seconds)
    page.add(balance.ACTIVE_SECONDS, key, totals.active_seconds)
    page.add(balance.IDLE_SECONDS, key, totals.idle_seconds)
    for stage, seconds in totals.stage_seconds.items():
        page.add(balance.STAGE_ACTIVE_SECONDS, (*key, stage), seconds)
    for kind, stages in totals.wait_seconds.items():
        for stage, seconds in stages.items():
            page.add(balance.WAIT_SECONDS, (*key, kind, stage), seconds)
    for kind, tokens in rank.tokens_total.items():
        page.add(balance.RANK_TOKENS, (*key, kind), tokens)
    for queue, depth in rank.queue_depth.items():
        page.add(balance.QUEUE_DEPTH, (*key, queue), depth)
    page.add(about_agent.RECORDS, key, rank.num_records)
    page.add(about_agent.LOST_RECORDS, key, rank.num_lost_records)
    page.add(about_agent.LATE_RECORDS, key, rank.num_late_records)
    page.add(about_agent.GUEST_DROPS, key, rank.num_guest_drops)


def _add_last_step(page: _Page, key: Labels, rank: RankRow) -> None:
    if rank.last is not None:
        page.add(performance.RANK_STEP_SECONDS, key, rank.last.wall_seconds)
        for stage, seconds in rank.last.stage_seconds.items():
            page.add(performance.RANK_STAGE_SECONDS, (*key, stage), seconds)
    if rank.inflight:
        open_span = rank.inflight[-1]
        labels = (*key, open_span.kind, open_span.name)
        page.add(performance.INFLIGHT_SECONDS, labels, open_span.elapsed_seconds)
    for stamp in rank.stamps:
        labels = (*key, stamp.stage, str(stamp.slot))
        page.add(performance.STAGE_START, labels, stamp.begin_seconds)
        if stamp.end_seconds is not None:
            page.add(performance.STAGE_END, labels, stamp.end_seconds)


def _add_scalars(page: _Page, key: Labels, rank: RankRow, framework: str) -> None:
    for scalar in rank.scalars:
        if scalar.metric is None:
            labels = (*key, framework, scalar.key)
            page.add(about_agent.NATIVE_METRIC, labels, scalar.moments.mean)
        else:
            metric = _METRICS[scalar.metric]
            extra = (scalar.labels.get(name, "") for name in metric.labels[len(key) :])
            page.add(metric, (*key, *extra), scalar.moments.mean)
