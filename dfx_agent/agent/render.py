"""Runs and processes as rows of a Snapshot: the agent's state in the words of contract 2."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import replace

from dfx_agent.agent.local_run import LocalRun
from dfx_agent.facts.measurements import RankDetails
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.job.rank_rows import RankInput, rank_row
from dfx_agent.job.step_rows import rank_order
from dfx_agent.node.measurements import stamps
from dfx_agent.node.passive import OutsideProcess
from dfx_agent.node.process import Process
from dfx_agent.node.time.closed_step import ClosedStep
from dfx_agent.snapshot import (
    Blindness,
    MemoryHistory,
    Piece,
    RankRow,
    RunRow,
    RunVerdicts,
    Snapshot,
    TimelineRow,
    TimeSplit,
    sentences,
)
from dfx_agent.snapshot.faults import not_green, unclear


def run_row(run: LocalRun) -> RunRow:
    """One run as it is now."""
    run.complete_facts()
    rows = run.job.rows
    row = rows.run(run.verdicts(), tuple(_rank_rows(run)))
    row = replace(row, part=run.part(), dropped_ranks=run.dropped.rows())
    row = run.job.concluded(row)
    run.concluded = RunVerdicts.from_row(row)
    return row


def num_records(run: RunRow) -> int:
    """Of all its processes, shown or not."""
    return sum(row.num_records for rows in (run.ranks, run.dropped_ranks) for row in rows)


def num_lost_records(run: RunRow) -> int:
    """Of all its processes, shown or not."""
    return sum(row.num_lost_records for rows in (run.ranks, run.dropped_ranks) for row in rows)


def guarded_row(run: LocalRun) -> RunRow:
    """The same; of a run that cannot be shown what is wrong with it."""
    with run.faults.guard("rendering", run.run, "row"):
        return run_row(run)
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


def memory_histories(run: LocalRun) -> tuple[MemoryHistory, ...]:
    """Host memory over the steps of each process that reports it."""
    found = map(run.memory_reader.history, run.processes.values())
    return tuple(history for history in found if history is not None)


def _rank_rows(run: LocalRun) -> Iterator[RankRow]:
    """Rows of the processes that can be rendered; the run's faults name the other processes."""
    details = {}
    for process in run.processes.values():
        with run.faults.guard("rendering", run.run, f"rank {process.label}"):
            details[process.id] = _details(run, process)
    yield from run.job.rows.ranks(details)
    for outside in run.outside:
        with run.faults.guard("rendering", run.run, f"rank {outside.label}"):
            yield outside_row(outside)


def outside_row(outside: OutsideProcess) -> RankRow:
    """The row of a process without a guest."""
    seat, details = outside.seat, RankDetails(outside=outside.seen())
    return rank_row(RankInput(seat, seat.node, totals=outside.totals(), details=details))


def _details(run: LocalRun, process: Process) -> RankDetails:
    """What only this node has of a process. A log has no times of its own."""
    account = None if process.registered_as.role == LOG_ROLE else process.account
    process.catch_up()
    last = process.windows[-1].window if process.windows else None
    return RankDetails(
        current=account.current.split.as_seconds() if account else TimeSplit(),
        last=last.split.as_seconds() if last else None,
        scalars=run.scalar_rows.rank_rows(process, run.framework_of(process)),
        stamps=stamps(process),
        gauges=dict(process.gauges),
        collectives=run.collectives.rows(process),
        device_stages=process.devices.rows(),
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
