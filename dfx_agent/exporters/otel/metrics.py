"""Families as OpenTelemetry metrics: the same series as at /metrics, under names with dots.

Built as data and not through instruments: the agent's snapshot is an aggregate already. Sums are
cumulative since the agent began. Source: OpenTelemetry metrics data model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
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

from dfx_agent.catalogue.spec import by_name
from dfx_agent.exporters.otel.histograms import histogram_points
from dfx_agent.exporters.otel.resource import SCOPE, resource_of
from dfx_agent.exporters.otel.session import BoundedSession

_METRICS = by_name()


def open_part(url: str, instance: str, version: str) -> MetricsPart:
    return MetricsPart(url, instance, version)


class MetricsPart:
    """Pushes to one receiver."""

    def __init__(self, url: str, instance: str, version: str) -> None:
        self._exporter = OTLPMetricExporter(endpoint=url, session=BoundedSession())
        self._resource = resource_of(instance, version)
        self._scope = InstrumentationScope(SCOPE, version)
        self._begin_ns = time.time_ns()

    def prepare(self, families: Iterable[Family]) -> tuple[int, Callable[[], MetricExportResult]]:
        """(number of points, what pushes them)."""
        now_ns = time.time_ns()
        metrics = [_metric(each, self._begin_ns, now_ns) for each in families if each.samples]
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
