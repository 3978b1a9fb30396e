"""Runs and processes as rows of a Snapshot: the agent's state in the words of contract 2."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from dfx_agent.agent.local_run import LocalRun
from dfx_agent.agent.work_rows import work_row
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.job.step_rows import rank_order
from dfx_agent.node.engines.pool import pool_of
from dfx_agent.node.memory.gauges import device_rows, held_rows
from dfx_agent.node.process import Process
from dfx_agent.node.time.account import SpanEvent
from dfx_agent.node.time.closed_step import ClosedStep
from dfx_agent.snapshot import (
    Blindness,
    EngineFacts,
    HostMemory,
    OpenSpan,
    Piece,
    RankRow,
    RunRow,
    RunVerdicts,
    Snapshot,
    SpanKind,
    StageStamp,
    TimelineRow,
    TimeSplit,
    sentences,
)
from dfx_agent.snapshot.faults import not_green, unclear
from dfx_agent.wire.layout import UNKNOWN
from dfx_agent.wire.records import STAGE, WAIT

_SPAN_KINDS: dict[int, SpanKind] = {STAGE: "stage", WAIT: "wait"}


def run_row(run: LocalRun, engines: Sequence[EngineFacts] = ()) -> RunRow:
    """One run as it is now."""
    rows = run.job.rows
    row = rows.run(run.verdicts(), tuple(_rank_rows(run)))
    pool = pool_of(engines, run.idle_check.observe(engines, row.scalars))
    row = replace(row, engines=pool, part=run.part(), dropped_ranks=run.dropped.rows())
    row = run.job.concluded(row, engines)
    run.concluded = RunVerdicts.from_row(row)
    return row


def num_records(run: RunRow) -> int:
    """Of all its processes, shown or not."""
    return sum(row.num_records for rows in (run.ranks, run.dropped_ranks) for row in rows)


def num_lost_records(run: RunRow) -> int:
    """Of all its processes, shown or not."""
    return sum(row.num_lost_records for rows in (run.ranks, run.dropped_ranks) for row in rows)


def guarded_row(run: LocalRun, engines: Sequence[EngineFacts] = ()) -> RunRow:
    """The same; of a run that cannot be shown what is wrong with it."""
    with run.faults.guard("rendering", run.run, "row"):
        return run_row(run, engines)
    return RunRow(
        run=run.run, framework="", attempt=0, begin_seconds=0.0, ranks=(), steps=(), scalars=(),
        faults=run.faults.rows(run.run), blind=run.faults.blindness_of(run.run),
    )  # fmt: skip


def with_blindness(snapshot: Snapshot, blind: Blindness | None, *, is_old: bool) -> Snapshot:
    """``is_old``: nothing has been judged since then, so that nothing of it is clear."""
    agent = replace(snapshot.agent, blind=blind)
    if blind is None or not is_old:
        return replace(snapshot, agent=agent)
    since = time.strftime("%H:%M:%S", time.localtime(blind.since_seconds))
    reason = sentences.NOT_JUDGED_SINCE(when=since, reason=blind.reason)
    runs = tuple(
        replace(
            run,
            blind=blind,
            verdicts=tuple(unclear(v, reason) for v in run.verdicts),
            standing=not_green(run.standing, reason),
        )
        for run in snapshot.runs
    )
    return replace(snapshot, agent=agent, runs=runs)


def timeline_rows(
    run: LocalRun, num_steps: int, ranks: Collection[tuple[str, str]] = ()
) -> tuple[TimelineRow, ...]:
    """The latest closed steps and the open step of each process in ``ranks`` (default: all)."""
    rows = []
    for process in run.processes.values():
        role = process.follower.identity.role
        if role == LOG_ROLE or (ranks and (role, process.label) not in ranks):
            continue
        closed = [s for s in list(process.windows) if s.window.step is not None]
        rows += [_timeline_row(process, step) for step in closed[-num_steps:]]
        process.catch_up()
        account = process.account
        if account and account.current.begin_ns < account.watermark_ns:
            rows.append(_timeline_row(process, ClosedStep(account.current)))
    return tuple(sorted(rows, key=lambda r: (r.role, rank_order(r.rank), r.begin_seconds)))


def _rank_rows(run: LocalRun) -> Iterator[RankRow]:
    """Rows of the processes that can be rendered; the run's faults name the other processes."""
    places = run.job.rows.places()
    ordered = sorted(run.processes.items(), key=lambda item: (item[0][0], rank_order(item[0][1])))
    for (role, label), process in ordered:
        with run.faults.guard("rendering", run.run, f"rank {label}"):
            place = places.get(role, {}).get(label, {})
            yield replace(_measured(run, process, _rank_row(run, process)), place=place)
    for outside in run.outside:
        with run.faults.guard("rendering", run.run, f"rank {outside.label}"):
            yield outside.row()


def _rank_row(run: LocalRun, process: Process) -> RankRow:
    identity, preamble = process.follower.identity, process.follower.preamble
    totals = process.totals()
    is_log = identity.role == LOG_ROLE
    account = None if is_log else process.account
    current = account.current if account else None
    seconds = process.follower.epoch_seconds
    event = process.last_event_ns
    return RankRow(
        role=identity.role,
        rank=process.label,
        local_rank=_none_if_unknown(identity.local_rank),
        world_size=_none_if_unknown(identity.world_size),
        node=identity.host,
        pid=process.pid,
        attempt=process.attempt,
        state=process.state,
        begin_seconds=preamble.created_epoch_ns / 1e9,
        last_event_seconds=seconds(event) if event else None,
        step=process.step,
        step_begin_seconds=seconds(current.begin_ns) if current else None,
        inflight=_open_spans(process, run.facts.now_ns),
        totals=TimeSplit() if is_log else totals.split.as_seconds(),
        current=current.split.as_seconds() if current else TimeSplit(),
        last=process.windows[-1].window.split.as_seconds() if process.windows else None,
        tokens_total=totals.tokens,
        queue_depth=dict(process.queues),
        policy_version=process.policy_version,
        scalars=run.scalar_rows.rank_rows(process, run.framework_of(process)),
        stamps=_stamps(process),
        num_records=totals.num_records,
        num_lost_records=totals.num_lost,
        num_late_records=totals.num_late,
        num_guest_drops=totals.num_guest_drops,
        num_earlier_records=totals.num_earlier,
        counters_total=totals.counters,
        source="passive" if is_log else "guest",
        is_suspended=run.tracks.is_suspended(process),
    )


def _measured(run: LocalRun, process: Process, row: RankRow) -> RankRow:
    """``row`` with the measurements of the process that do not depend on steps."""
    last = process.windows[-1].window if process.windows else None
    return replace(
        row,
        gauges=dict(process.gauges),
        collectives=run.collectives.rows(process),
        groups=run.collectives.group_rows(process),
        ledger=run.judge.ledger.rows(process.registered_as.role, process.label),
        devices=device_rows(process.gauges),
        device_names=process.devices.names,
        device_bytes=dict(process.devices.own_bytes),
        device_stages=process.devices.rows(),
        host_memory=None if row.source == "passive" else _host_memory(process),
        held=held_rows(process.gauges),
        beside_allocator=process.memory.beside_allocator,
        event_loop=process.loop.row(time.monotonic_ns(), last, process.inflight),
        work=work_row(process, run.peaks, run.model_configs),
    )


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


def _open_spans(process: Process, read_ns: int) -> tuple[OpenSpan, ...]:
    now = read_ns if process.is_living else process.last_event_ns or 0
    ordered = sorted(process.inflight, key=lambda event: event.span)
    return tuple(_open_span(process, event, now) for event in ordered)


def _open_span(process: Process, event: SpanEvent, now_ns: int) -> OpenSpan:
    kind = _SPAN_KINDS.get(event.kind, "collective")
    number = None if event.step < 0 else event.step
    return OpenSpan(
        kind=kind,
        name=event.name,
        begin_seconds=process.follower.epoch_seconds(event.begin_ns),
        elapsed_seconds=max(0.0, (now_ns - event.begin_ns) / 1e9),
        step=None if kind == "collective" else number,
        sequence=number if kind == "collective" else None,
    )


def _stamps(process: Process) -> tuple[StageStamp, ...]:
    seconds = process.follower.epoch_seconds
    return tuple(
        StageStamp(
            stage, slot, seconds(s.begin_ns), None if s.end_ns is None else seconds(s.end_ns)
        )
        for (stage, slot), s in process.stamps.items()
    )


def _timeline_row(process: Process, closed: ClosedStep) -> TimelineRow:
    window = closed.window
    seconds = process.follower.epoch_seconds
    return TimelineRow(
        role=process.follower.identity.role,
        rank=process.label,
        step=window.step,
        begin_seconds=seconds(window.begin_ns),
        end_seconds=None if window.end_ns is None else seconds(window.end_ns),
        num_omitted_pieces=window.first_pieces.num_omitted,
        pieces=tuple(
            Piece(p.kind, p.name, seconds(p.begin_ns), seconds(p.end_ns)) for p in window.pieces
        ),
    )


def _none_if_unknown(value: int) -> int | None:
    return None if value == UNKNOWN else value
