"""One rank of a run as Prometheus families, by the catalogue's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from dfx_agent.catalogue import agent as about_agent
from dfx_agent.catalogue import per_rank, performance, reward, training, utilisation, weight_sync
from dfx_agent.catalogue.native import load
from dfx_agent.catalogue.spec import Metric, Subject, Valued, by_name, valued
from dfx_agent.snapshot import (
    Histogram,
    RankRow,
    RunRow,
    ScalarRow,
)

_METRICS = by_name()
_FAMILIES = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "info": InfoMetricFamily,
    "histogram": HistogramMetricFamily,
}
# counters of the guest that other metrics are computed from
_PREFIXES = (*utilisation.COUNTERS, reward.SCORE_COUNTER, per_rank.STAGE_FAILURES_COUNTER)
# a job may log one key per sample; keys above the limit are only counted
_MAX_NATIVE_KEYS = 200
# first word of guest gauges that other metrics are computed from
_GUEST_GAUGES = frozenset({"patch", "memory", "delivered", "heap"})

Labels = tuple[str, ...]


class Page:
    """Families in the order of first use, one per metric; ``wanted`` leaves out all others."""

    def __init__(self, wanted: frozenset[str] | None = None) -> None:
        self.families: dict[str, Family] = {}
        self._wanted = wanted
        self._valued: dict[Subject, Sequence[Valued]] = {}

    def wants(self, metric: Metric) -> bool:
        return self._wanted is None or metric.name in self._wanted

    def valued(self, subject: Subject) -> Sequence[Valued]:
        """Those values of the row whose metrics are wanted."""
        found = self._valued.get(subject)
        if found is None:
            found = self._valued[subject] = [one for one in valued(subject) if self.wants(one[0])]
        return found

    def add(self, metric: Metric, labels: Labels, value: float) -> None:
        if self.wants(metric):
            self.adder(metric)(labels, value)

    def adder(self, metric: Metric) -> Callable[[Labels, float], None]:
        """Adds a sample of a metric that is wanted."""
        family = self.families.get(metric.name) or self._family(metric)
        add: Callable[[Labels, float], None] = family.add_metric  # type: ignore[attr-defined]
        return add

    def add_histogram(self, metric: Metric, labels: Labels, value: Histogram) -> None:
        bounds = (*map(floatToGoString, value.bounds), "+Inf")
        buckets = list(zip(bounds, value.counts, strict=True))
        family = self.families.get(metric.name) or self._family(metric)
        family.add_metric(labels, buckets, value.sum)  # type: ignore[attr-defined]

    def info(self, metric: Metric, labels: Labels) -> None:
        if self._wanted is not None and metric.name not in self._wanted:
            return
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


def add_values(page: Page, subject: Subject, key: Labels, row: Any) -> None:
    """All metrics whose value comes from such a row."""
    for metric, value_of in page.valued(subject):
        value = value_of(row)
        if value is None:
            continue
        if isinstance(value, Mapping):
            _add_labelled(page, metric, key, value)
        elif isinstance(value, Histogram):
            page.add_histogram(metric, key, value)
        else:
            page.adder(metric)(key, value)


def _add_labelled(page: Page, metric: Metric, key: Labels, values: Mapping[Any, Any]) -> None:
    if metric.kind == "histogram":
        for labels, histogram in values.items():
            page.add_histogram(metric, (*key, *labels), histogram)
    elif values:
        add = page.adder(metric)
        for labels, number in values.items():
            more = (labels,) if isinstance(labels, str) else labels
            add((*key, *more), number)


def add_rank(page: Page, run: str, rank: RankRow, framework: str) -> None:
    """All metrics of one rank."""
    key = (run, rank.role, rank.rank)
    _add_process(page, key, rank)
    add_values(page, "rank", key, rank)
    for device in rank.devices:
        add_values(page, "device", (*key, device.device), device)
    if rank.outside is not None:
        return
    add_values(page, "sender", key, rank)
    if rank.source == "guest":  # a log has values, but no times of its own
        add_values(page, "guest", key, rank)
        _add_stamps(page, key, rank)
        _add_unknown_counters(page, key, rank)
        _add_gauges(page, key, rank, framework)
    if rank.is_full:
        _add_scalars(page, key, rank, framework)


def _add_process(page: Page, key: Labels, rank: RankRow) -> None:
    local_rank, world_size = (
        "" if value is None else str(value) for value in (rank.local_rank, rank.world_size)
    )
    process = rank.node, local_rank, world_size, str(rank.pid), rank.source
    page.info(per_rank.RANK_INFO, (*key, *process))


def _add_stamps(page: Page, key: Labels, rank: RankRow) -> None:
    wants_stamps = page.wants(performance.STAGE_START) or page.wants(performance.STAGE_END)
    for stamp in rank.stamps if wants_stamps else ():
        labels = (*key, stamp.stage, str(stamp.slot))
        page.add(performance.STAGE_START, labels, stamp.begin_seconds)
        if stamp.end_seconds is not None:
            page.add(performance.STAGE_END, labels, stamp.end_seconds)


def _add_unknown_counters(page: Page, key: Labels, rank: RankRow) -> None:
    for name, count in rank.counters_total.items():
        if name not in training.COUNTERS and not name.startswith(_PREFIXES):
            page.add(about_agent.NATIVE_COUNT, (*key, name), count)


def _add_gauges(page: Page, key: Labels, rank: RankRow, framework: str) -> None:
    """Gauges about adapters, and gauges of the job without a metric of their own."""
    for name, value in rank.gauges.items():
        head, _, rest = name.partition("/")
        if head == "adapter" and rest.count("/") >= 2:
            _add_adapter(page, key, rank, rest, value)
        elif head not in _GUEST_GAUGES and name not in about_agent.GAUGES:
            page.add(about_agent.NATIVE_METRIC, (*key, framework, name), value)


def _add_adapter(page: Page, key: Labels, rank: RankRow, name: str, state: float) -> None:
    """An adapter is active if it has delivered in this process."""
    adapted, part, version = name.split("/", 2)
    is_waiting = state > 0 and f"delivered/{name}" not in rank.gauges
    labels = *key, adapted, version, part
    page.add(about_agent.ADAPTER_ACTIVE, labels, 0 if is_waiting else state)


def add_silent_parts(page: Page, run: RunRow) -> None:
    """Parts of adapters through which no process of the run has delivered, after a first step.

    It is enough if one process delivers: often one rank alone logs, and a driver calls no method of
    its workers.
    """
    delivered = {name.partition("/")[2] for rank in run.ranks for name in rank.gauges
                 if name.startswith("delivered/")}  # fmt: skip
    for rank in run.ranks:
        for name, state in rank.gauges.items():
            head, _, rest = name.partition("/")
            is_part = head == "adapter" and rest.count("/") >= 2
            if is_part and state > 0 and rank.last is not None and rest not in delivered:
                adapted, part, version = rest.split("/", 2)
                labels = run.run, rank.role, rank.rank, adapted, version, part
                page.add(about_agent.ADAPTER_SILENT, labels, 1)


def _add_scalars(page: Page, key: Labels, rank: RankRow, framework: str) -> None:
    """If two keys map to the same series, the first one in the mapping is exported."""
    names = load(framework)
    written = _measured(key, rank)
    unknown = []
    wanted = [scalar for scalar in rank.scalars if page.wants(_metric_of(scalar))]
    for scalar in sorted(wanted, key=lambda scalar: names.priority(scalar.key)):
        if scalar.metric is None:
            unknown.append(scalar)
            continue
        metric = _METRICS[scalar.metric]
        labels = (*key, *(scalar.labels.get(name, "") for name in metric.labels[len(key) :]))
        if (metric.name, labels) not in written:
            written.add((metric.name, labels))
            page.add(metric, labels, scalar.moments.mean)
    if page.wants(about_agent.NATIVE_METRIC):
        _add_unknown(page, key, framework, [row for row in unknown if row.key not in rank.gauges])


def _metric_of(scalar: ScalarRow) -> Metric:
    return about_agent.NATIVE_METRIC if scalar.metric is None else _METRICS[scalar.metric]


def _measured(key: Labels, rank: RankRow) -> set[tuple[str, Labels]]:
    """Series that the guest measures itself; a framework's value for the same is left out."""
    queues = {(per_rank.QUEUE_DEPTH.name, (*key, queue, "")) for queue in rank.queue_depth}
    if rank.policy_version is not None:
        queues.add((performance.POLICY_VERSION.name, key))
    parts = weight_sync.part_seconds(rank.last) if rank.source == "guest" and rank.last else {}
    return queues | {(weight_sync.UPDATE_SECONDS.name, (*key, part, "")) for part in parts}


def _add_unknown(page: Page, key: Labels, framework: str, rows: list[ScalarRow]) -> None:
    """Keys without a mapping: a limited number have series, all are counted."""
    page.add(about_agent.UNMAPPED_KEYS, key, len(rows))
    page.add(about_agent.UNEXPORTED_KEYS, key, max(0, len(rows) - _MAX_NATIVE_KEYS))
    for row in rows[:_MAX_NATIVE_KEYS]:
        page.add(about_agent.NATIVE_METRIC, (*key, framework, row.key), row.moments.mean)
