"""One rank of a run as Prometheus families, by the catalogue's names."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from dfx_agent.catalogue import agent as about_agent
from dfx_agent.catalogue import balance, collectives, memory, passive, performance, training
from dfx_agent.catalogue.native import load
from dfx_agent.catalogue.spec import Metric, by_name
from dfx_agent.snapshot import (
    CollectiveTime,
    DeviceMemory,
    OutsideLook,
    RankRow,
    RunRow,
    ScalarRow,
)

_METRICS = by_name()
_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "info": InfoMetricFamily}
_COUNTERS = {
    "micro_batches": training.MICRO_BATCHES,
    "optimizer_steps": training.OPTIMIZER_STEPS,
    "skipped_updates": training.SKIPPED_UPDATES,
    "nonfinite_gradients": training.NONFINITE_GRADIENTS,
}
_DEVICE_FIELDS = (
    (memory.GPU_ALLOCATED, "allocated_bytes"),
    (memory.GPU_RESERVED, "reserved_bytes"),
    (memory.GPU_LIMIT, "limit_bytes"),
    (memory.GPU_ALLOC_RETRIES, "num_alloc_retries"),
    (memory.GPU_OOMS, "num_ooms"),
)
# A job may make thousands of groups; beyond these a rank's groups share the label.
_MAX_GROUPS = 32
_OTHER_GROUPS = "other"
# A job may log a key per sample; further ones are counted only.
_MAX_NATIVE_KEYS = 200

Labels = tuple[str, ...]


class Page:
    """Families in the order of first use, one per metric; ``wanted`` leaves out all others."""

    def __init__(self, wanted: frozenset[str] | None = None) -> None:
        self.families: dict[str, Family] = {}
        self._wanted = wanted

    def wants(self, metric: Metric) -> bool:
        return self._wanted is None or metric.name in self._wanted

    def add(self, metric: Metric, labels: Labels, value: float) -> None:
        if self._wanted is not None and metric.name not in self._wanted:
            return
        self._family(metric).add_metric(labels, value)  # type: ignore[attr-defined]

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


def add_rank(page: Page, run: str, rank: RankRow, framework: str) -> None:
    """Everything one rank says."""
    key = (run, rank.role, rank.rank)
    _add_state(page, key, rank)
    if rank.outside is not None:
        _add_outside(page, key, rank.outside)
        _add_memory(page, key, rank)
        return
    _add_records(page, key, rank)
    if rank.source == "passive":  # a log: values, and no times of its own
        _add_scalars(page, key, rank, framework)
        return
    _add_totals(page, key, rank)
    _add_last_step(page, key, rank)
    _add_inflight(page, key, rank)
    _add_collectives(page, key, rank)
    _add_groups(page, key, rank)
    _add_counters(page, key, rank)
    _add_gauges(page, key, rank, framework)
    _add_memory(page, key, rank)
    _add_scalars(page, key, rank, framework)


def _add_state(page: Page, key: Labels, rank: RankRow) -> None:
    local_rank, world_size = (
        "" if value is None else str(value) for value in (rank.local_rank, rank.world_size)
    )
    process = rank.node, local_rank, world_size, str(rank.pid), rank.source
    page.info(balance.RANK_INFO, (*key, *process))
    page.add(balance.RANK_UP, key, rank.state in ("live", "unknown"))
    if rank.step is not None:
        page.add(performance.STEP, key, rank.step)
    if rank.policy_version is not None:
        page.add(performance.POLICY_VERSION, key, rank.policy_version)


def _add_outside(page: Page, key: Labels, look: OutsideLook) -> None:
    if look.cpu_seconds is not None:
        page.add(passive.CPU_SECONDS, key, look.cpu_seconds)
    for state, count in look.num_threads.items():
        page.add(passive.THREADS, (*key, state), count)
    for stage, count in look.stage_samples.items():
        page.add(passive.STACK_SAMPLES, (*key, stage), count)
    if look.stage_samples or look.num_failed_samples:
        page.add(passive.STACK_FAILURES, key, look.num_failed_samples)


def _add_records(page: Page, key: Labels, rank: RankRow) -> None:
    page.add(about_agent.RECORDS, key, rank.num_records)
    page.add(about_agent.LOST_RECORDS, key, rank.num_lost_records)
    page.add(about_agent.EARLIER_RECORDS, key, rank.num_earlier_records)
    page.add(about_agent.LATE_RECORDS, key, rank.num_late_records)
    page.add(about_agent.GUEST_DROPS, key, rank.num_guest_drops)


def _add_totals(page: Page, key: Labels, rank: RankRow) -> None:
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
        page.add(balance.QUEUE_DEPTH, (*key, queue, ""), depth)


def _add_last_step(page: Page, key: Labels, rank: RankRow) -> None:
    if rank.last is not None:
        page.add(performance.RANK_STEP_SECONDS, key, rank.last.wall_seconds)
        for stage, seconds in rank.last.stage_seconds.items():
            page.add(performance.RANK_STAGE_SECONDS, (*key, stage), seconds)
    wants_stamps = page.wants(performance.STAGE_START) or page.wants(performance.STAGE_END)
    for stamp in rank.stamps if wants_stamps else ():
        labels = (*key, stamp.stage, str(stamp.slot))
        page.add(performance.STAGE_START, labels, stamp.begin_seconds)
        if stamp.end_seconds is not None:
            page.add(performance.STAGE_END, labels, stamp.end_seconds)


def _add_inflight(page: Page, key: Labels, rank: RankRow) -> None:
    """The innermost stage or wait, and the oldest open collective of each name."""
    longest: dict[Labels, float] = {}
    innermost = None
    for span in rank.inflight:
        if span.kind == "collective":
            operation, _, group = span.name.rpartition("@")
            labels = (*key, operation, group)
            longest[labels] = max(longest.get(labels, 0.0), span.elapsed_seconds)
        else:
            innermost = span
    if innermost is not None:
        labels = (*key, innermost.kind, innermost.name)
        page.add(performance.INFLIGHT_SECONDS, labels, innermost.elapsed_seconds)
    for labels, seconds in longest.items():
        page.add(collectives.INFLIGHT_COLLECTIVE_SECONDS, labels, seconds)


def _add_collectives(page: Page, key: Labels, rank: RankRow) -> None:
    shown = _shown_groups(rank)
    for (group, stage, method), rows in _by_labels(rank.collectives, shown).items():
        labels = (*key, group, stage, method)
        page.add(collectives.COLLECTIVES, labels, sum(row.num_collectives for row in rows))
        sizes = [row.num_bytes for row in rows if row.num_bytes is not None]
        if sizes:
            page.add(collectives.COLLECTIVE_BYTES, labels, sum(sizes))
        for part, seconds in (
            ("peers", sum(row.peers_seconds for row in rows)),
            ("transfer", sum(row.transfer_seconds for row in rows)),
            ("unmatched", sum(row.unmatched_seconds for row in rows)),
        ):
            labels = (*key, group, stage, part, method)
            page.add(collectives.COLLECTIVE_SECONDS, labels, seconds)


def _add_groups(page: Page, key: Labels, rank: RankRow) -> None:
    if rank.groups:
        page.add(collectives.RANK_GROUPS, key, len(rank.groups))
    shown = _shown_groups(rank)
    for row in rank.groups:
        if row.group in shown:
            labels = (*key, row.group)
            page.add(collectives.GROUP_ENQUEUED, labels, row.num_enqueued)
            if row.num_completed is not None:
                page.add(collectives.GROUP_COMPLETED, labels, row.num_completed)
            if row.coverage_ratio is not None:
                page.add(collectives.COVERAGE_RATIO, labels, row.coverage_ratio)


def _shown_groups(rank: RankRow) -> set[str]:
    """The first that this rank told of; rows keep their order."""
    names = dict.fromkeys(row.group for row in rank.groups)
    names.update(dict.fromkeys(row.group for row in rank.collectives))
    return set(list(names)[:_MAX_GROUPS])


def _by_labels(
    rows: Iterable[CollectiveTime], shown: set[str]
) -> dict[tuple[str, str, str], list[CollectiveTime]]:
    """Rows by (group, stage, method)."""
    found: dict[tuple[str, str, str], list[CollectiveTime]] = {}
    for row in rows:
        group = row.group if row.group in shown else _OTHER_GROUPS
        found.setdefault((group, row.stage, row.method), []).append(row)
    return found


def _add_counters(page: Page, key: Labels, rank: RankRow) -> None:
    for name, count in rank.counters_total.items():
        metric = _COUNTERS.get(name)
        if metric is None:
            page.add(about_agent.NATIVE_COUNT, (*key, name), count)
        else:
            page.add(metric, key, count)


def _add_gauges(page: Page, key: Labels, rank: RankRow, framework: str) -> None:
    """What the guest says about itself; memory has rows of its own."""
    for name, value in rank.gauges.items():
        head, _, rest = name.partition("/")
        if head == "patch":
            page.add(about_agent.PATCH_ACTIVE, (*key, rest), value > 0)
            if value < 0:
                page.add(about_agent.PATCH_FAILED, (*key, rest), 1)
        elif head == "adapter" and rest.count("/") >= 2:
            _add_adapter(page, key, rank, rest, value)
        elif name == "guest/overhead_ratio":
            page.add(about_agent.GUEST_OVERHEAD_RATIO, key, value)
        elif name == "guest/given_up":
            page.add(about_agent.GUEST_GIVEN_UP, key, value)
        elif head not in {"memory", "delivered"}:
            page.add(about_agent.NATIVE_METRIC, (*key, framework, name), value)


def _add_adapter(page: Page, key: Labels, rank: RankRow, name: str, state: float) -> None:
    """Active is what has delivered in this process."""
    adapted, part, version = name.split("/", 2)
    is_waiting = state > 0 and f"delivered/{name}" not in rank.gauges
    labels = *key, adapted, version, part
    page.add(about_agent.ADAPTER_ACTIVE, labels, 0 if is_waiting else state)


def add_silent_parts(page: Page, run: RunRow) -> None:
    """Parts that no process of the run has delivered through, though a step is over.

    Of a part that delivers somewhere the others may well have nothing: one rank alone logs, and a
    driver calls no method of its workers.
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


def _add_memory(page: Page, key: Labels, rank: RankRow) -> None:
    for row in rank.devices:
        _add_device(page, (*key, row.device), row)
    if rank.host_memory is not None:
        page.add(memory.HOST_ANONYMOUS, key, rank.host_memory.anonymous_bytes)
        if rank.host_memory.slope_bytes_per_step is not None:
            page.add(memory.HOST_SLOPE, key, rank.host_memory.slope_bytes_per_step)


def _add_device(page: Page, key: Labels, row: DeviceMemory) -> None:
    for metric, field in _DEVICE_FIELDS:
        value = getattr(row, field)
        if value is not None:
            page.add(metric, key, value)
    if row.allocated_bytes is not None and row.reserved_bytes:
        page.add(memory.GPU_FRAGMENTATION, key, 1 - row.allocated_bytes / row.reserved_bytes)
    for stage, peak in row.stage_peak_bytes.items():
        page.add(memory.GPU_STAGE_PEAK, (*key, stage), peak)


def _add_scalars(page: Page, key: Labels, rank: RankRow, framework: str) -> None:
    """Two keys may mean the same series: the one that the mapping puts first is exported."""
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
    """Series that the guest measures itself: what a framework says about the same is left out."""
    queues = {(balance.QUEUE_DEPTH.name, (*key, queue, "")) for queue in rank.queue_depth}
    if rank.policy_version is not None:
        queues.add((performance.POLICY_VERSION.name, key))
    return queues


def _add_unknown(page: Page, key: Labels, framework: str, rows: list[ScalarRow]) -> None:
    """Keys without a mapping: so many of them have series, all are counted."""
    page.add(about_agent.UNMAPPED_KEYS, key, len(rows))
    page.add(about_agent.UNEXPORTED_KEYS, key, max(0, len(rows) - _MAX_NATIVE_KEYS))
    for row in rows[:_MAX_NATIVE_KEYS]:
        page.add(about_agent.NATIVE_METRIC, (*key, framework, row.key), row.moments.mean)
