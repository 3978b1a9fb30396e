"""Reads from a process what fills the row of its rank and is not part of the judges' facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfx_agent.catalogue.native.time_series import scalar_row
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.scalars import UpdateCounts
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.node.memory import device_rows, held_rows
from dfx_agent.node.process import Process
from dfx_agent.node.track import arrival_of
from dfx_agent.snapshot import (
    EventLoopRow,
    GroupRow,
    HostMemory,
    Moments,
    ScalarRow,
    StageStamp,
    TimeSplit,
)
from dfx_agent.wire.records import COLLECTIVES, STAGE

_APPLIED, _SKIPPED = "optimizer_steps", "skipped_updates"


def rank_totals(process: Process, groups: tuple[GroupRow, ...], now_ns: int) -> RankTotals:
    """Totals and memory at the last poll, which began at ``now_ns``.

    A log has no times and no memory of its own.
    """
    totals, is_log = process.totals(), process.registered_as.role == LOG_ROLE
    return RankTotals(
        process=process.id,
        totals=TimeSplit() if is_log else totals.split.as_seconds(),
        tokens_total=totals.tokens,
        counters_total=totals.counters,
        policy_version=process.policy_version,
        num_records=totals.num_records,
        num_lost_records=totals.num_lost,
        num_late_records=totals.num_late,
        num_guest_drops=totals.num_guest_drops,
        num_earlier_records=totals.num_earlier,
        host_memory=None if is_log else _host_memory(process),
        devices=device_rows(process.gauges),
        device_names=process.devices.names,
        device_bytes=dict(process.devices.own_bytes),
        held=held_rows(process.gauges),
        beside_allocator=process.memory.beside_allocator,
        groups=groups,
        event_loop=_event_loop(process, now_ns) if process.is_living else None,
    )


def unjudged_facts(process: Process, now_ns: int) -> RankFacts:
    """Facts about a process that no judge reads: a log, a detached process, an old attempt."""
    follower, account = process.follower, process.account
    current = account.current if account and process.registered_as.role != LOG_ROLE else None
    opened = sorted(process.inflight, key=lambda event: event.span)
    return RankFacts(
        label=process.label,
        pid=process.pid,
        state=process.state,
        now_ns=now_ns,
        now_seconds=follower.epoch_seconds(now_ns),
        begin_ns=follower.begin_ns,
        last_event_ns=process.last_event_ns,
        step=process.step,
        step_seconds=None if current is None else max(0, now_ns - current.begin_ns) / 1e9,
        stages=tuple(event.name for event in opened if event.kind == STAGE),
        open_spans=tuple(event.name for event in opened),
        opened_ns=tuple(event.begin_ns for event in opened),
        arrivals=tuple(arrival_of(event) for event in opened if event.kind in COLLECTIVES),
        reported_step=process.latest_step,
        queue_depth=dict(process.queues),
    )


def stamps(process: Process) -> tuple[StageStamp, ...]:
    """When each stage last began and ended."""
    seconds = process.follower.epoch_seconds
    return tuple(
        StageStamp(
            stage, slot, seconds(s.begin_ns), None if s.end_ns is None else seconds(s.end_ns)
        )
        for (stage, slot), s in process.stamps.items()
    )


def _event_loop(process: Process, now_ns: int) -> EventLoopRow | None:
    last = process.windows[-1].window if process.windows else None
    return process.loop.row(now_ns, last, process.inflight)


def _host_memory(process: Process) -> HostMemory | None:
    memory = process.memory
    if memory.anonymous_bytes is None:
        return None
    stages = memory.stage_bytes.items()
    return HostMemory(
        memory.anonymous_bytes,
        memory.trend.slope_bytes_per_step(),
        memory.heap.now,
        memory.bytes.resident,
        memory.bytes.virtual,
        {stage: had.resident for stage, had in stages if had.resident is not None},
        {stage: had.virtual for stage, had in stages if had.virtual is not None},
    )


def update_counts(processes: Iterable[Process]) -> Iterator[UpdateCounts]:
    """Counts of each live process that has an optimizer."""
    for process in processes:
        counters = process.counters
        if process.is_living and (_APPLIED in counters or _SKIPPED in counters):
            seconds = process.follower.epoch_seconds(process.last_event_ns or 0)
            applied, skipped = counters.get(_APPLIED, 0.0), counters.get(_SKIPPED, 0.0)
            yield UpdateCounts(process.id, process.step, seconds, applied, skipped)


_Rows = tuple[ScalarRow, ...]


class ScalarRows:
    """Rows of the ranks of one run, rebuilt when a new value has arrived.

    Scalars change once a step, but Snapshots are built more often.
    """

    def __init__(self) -> None:
        self._by_rank: dict[tuple[str, str], tuple[tuple[str, int], _Rows]] = {}

    def rank_rows(self, process: Process, framework: str) -> _Rows:
        """The latest value of each key. ``framework``: the framework that defines the keys."""
        rank_key = process.registered_as.role, process.label
        version = framework, process.scalars_version
        cached = self._by_rank.get(rank_key)
        if cached is None or cached[0] != version:
            cached = self._by_rank[rank_key] = version, _rank_rows(process, framework)
        return cached[1]

    def remove_rank(self, role: str, label: str) -> None:
        self._by_rank.pop((role, label), None)


def _rank_rows(process: Process, framework: str) -> _Rows:
    seconds = process.follower.epoch_seconds
    return tuple(
        scalar_row(
            framework,
            scalar.key,
            scalar.step,
            seconds(scalar.time_ns),
            Moments.of_value(scalar.value),
        )
        for scalar in process.scalars.values()
    )
