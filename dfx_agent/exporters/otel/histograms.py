"""Samples of a Prometheus histogram as OpenTelemetry's points: counts by bucket, not cumulative."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.metrics.export import HistogramDataPoint
from prometheus_client.samples import Sample


def histogram_points(
    samples: Iterable[Sample], begin_ns: int, now_ns: int
) -> list[HistogramDataPoint]:
    """One for each label set. Smallest and largest value are not known."""
    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in samples:
        labels = tuple((k, v) for k, v in sample.labels.items() if k != "le")
        told = found.setdefault(labels, {"buckets": [], "sum": 0.0})
        if "le" in sample.labels:
            told["buckets"].append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            told["sum"] = sample.value
    return [_point(labels, told, begin_ns, now_ns) for labels, told in found.items()]


def _point(
    labels: tuple[tuple[str, str], ...], told: dict[str, Any], begin_ns: int, now_ns: int
) -> HistogramDataPoint:
    buckets = sorted(told["buckets"])
    counts = [int(count) for _, count in buckets]
    return HistogramDataPoint(
        attributes=dict(labels),
        start_time_unix_nano=begin_ns,
        time_unix_nano=now_ns,
        count=counts[-1],
        sum=told["sum"],
        bucket_counts=[now - before for now, before in zip(counts, [0, *counts], strict=False)],
        explicit_bounds=[bound for bound, _ in buckets if math.isfinite(bound)],
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )
