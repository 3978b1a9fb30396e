"""Families as OpenTelemetry metrics: the same series as at /metrics, under names with dots.

Built as data and not through instruments: the agent's snapshot is an aggregate already. Sums are
cumulative since the agent began. Source: OpenTelemetry metrics data model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from dfx_agent.catalogue.spec import by_name
from dfx_agent.exporters.otel.session import SCOPE, BoundedSession, resource_of

_METRICS = by_name()


def open_part(url: str, instance: str, version: str) -> MetricsPart:
    return MetricsPart(url, instance, version)


class MetricsPart:
    """Pushes metrics to one receiver."""

    def __init__(self, url: str, instance: str, version: str) -> None:
        self._exporter = OTLPMetricExporter(endpoint=url, session=BoundedSession())
        self._resource = resource_of(instance, version)
        self._scope = InstrumentationScope(SCOPE, version)
        self._begin_ns = time.time_ns()

    def prepare(self, families: Iterable[Family]) -> tuple[int, Callable[[], MetricExportResult]]:
        """(number of points, function that pushes them)."""
        now_ns = time.time_ns()
        metrics = [_metric(family, self._begin_ns, now_ns) for family in families if family.samples]
        scoped = ScopeMetrics(self._scope, metrics, schema_url="")
        data = MetricsData([ResourceMetrics(self._resource, [scoped], schema_url="")])
        num_points = sum(len(metric.data.data_points) for metric in metrics)
        return num_points, lambda: self._exporter.export(data)

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _metric(family: Family, begin_ns: int, now_ns: int) -> Metric:
    metric, is_sum = _METRICS[family.name], family.type == "counter"
    if metric.kind == "histogram":
        points_of = histogram_points(family.samples, begin_ns, now_ns)
        histogram = Histogram(points_of, AggregationTemporality.CUMULATIVE)
        return Metric(metric.otel_name, metric.help, metric.otel_unit, histogram)
    points = [
        NumberDataPoint(
            attributes=sample.labels,
            start_time_unix_nano=begin_ns if is_sum else 0,
            time_unix_nano=now_ns,
            value=float(sample.value),
        )
        for sample in family.samples
    ]
    cumulative = AggregationTemporality.CUMULATIVE
    data = Sum(points, cumulative, is_monotonic=True) if is_sum else Gauge(points)
    return Metric(metric.otel_name, metric.help, metric.otel_unit, data)


def histogram_points(
    samples: Iterable[Sample], begin_ns: int, now_ns: int
) -> list[HistogramDataPoint]:
    """One point per label set; minimum and maximum are unknown."""
    fields_by_labels: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in samples:
        labels = tuple((k, v) for k, v in sample.labels.items() if k != "le")
        fields = fields_by_labels.setdefault(labels, {"buckets": [], "sum": 0.0})
        if "le" in sample.labels:
            fields["buckets"].append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            fields["sum"] = sample.value
    return [_point(labels, fields, begin_ns, now_ns) for labels, fields in fields_by_labels.items()]


def _point(
    labels: tuple[tuple[str, str], ...], fields: dict[str, Any], begin_ns: int, now_ns: int
) -> HistogramDataPoint:
    buckets = sorted(fields["buckets"])
    counts = [int(count) for _, count in buckets]
    return HistogramDataPoint(
        attributes=dict(labels),
        start_time_unix_nano=begin_ns,
        time_unix_nano=now_ns,
        count=counts[-1],
        sum=fields["sum"],
        bucket_counts=[now - before for now, before in zip(counts, [0, *counts], strict=False)],
        explicit_bounds=[bound for bound, _ in buckets if math.isfinite(bound)],
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )
