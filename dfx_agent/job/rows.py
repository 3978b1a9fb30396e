"""Builds the snapshot row of a job from facts; fields without facts are None or empty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

from dfx_agent.facts.layout import NO_LAYOUT
from dfx_agent.facts.memory import MemoryFacts, Samples
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.seat import LOG_ROLE, ProcessId, Seat
from dfx_agent.hub.node_facts import NodeRun
from dfx_agent.job.fold import JobFold
from dfx_agent.job.rank_positions import Positions, RankPositions
from dfx_agent.job.step_rows import rank_order
from dfx_agent.job.steps import latest_rows
from dfx_agent.snapshot import (
    DeviceMemory,
    DroppedRanks,
    HostMemory,
    OpenSpan,
    RankRow,
    RunRow,
    SpanKind,
    StepRow,
    TimeSplit,
    Verdict,
)

_NUM_STEPS = 8
_MIN_SAMPLES, _NUM_PARTS = 8, 4  # memory samples for a slope


class JobRows:
    """Builds the rows of one job."""

    def __init__(self, fold: JobFold) -> None:
        self._fold = fold
        self._memory: dict[str, MemoryRows] = {}  # by node
        self._places: dict[str, RankPositions] = {}  # by role

    def run(self, verdicts: tuple[Verdict, ...], ranks: tuple[RankRow, ...]) -> RunRow:
        """The row of the job at the current time, with these verdicts and ranks."""
        fold = self._fold
        seats = list(fold.seats(of_connected=False))
        begins = [seat.created_ns / 1e9 + fold.shift(node).seconds for node, seat in seats]
        begins += [launcher.since_seconds for launcher in fold.launched]
        begins += filter(None, (_first_begin(fold, node) for node in fold.nodes.values()))
        attempts = [seat.attempt for _, seat in seats]
        attempts += [node.facts.attempt for node in fold.nodes.values()]
        return RunRow(
            run=fold.run,
            framework=fold.framework,
            attempt=max(attempts, default=0),
            begin_seconds=min(begins, default=0.0),
            ranks=ranks,
            steps=self.latest_steps(_NUM_STEPS),
            scalars=fold.time_series.rows(fold.framework),
            num_stale_scalars=fold.time_series.num_stale,
            verdicts=verdicts,
            dropped_ranks=_dropped(fold.nodes.values()),
        )

    def latest_steps(self, num_steps: int) -> tuple[StepRow, ...]:
        """The latest shown steps of every role, oldest first."""
        return latest_rows(self._fold.steps.values(), num_steps)

    def ranks(self) -> tuple[RankRow, ...]:
        """One row per process, sorted by role and rank."""
        steps = self.latest_steps(_NUM_STEPS)
        splits = {(row.role, cell.rank): cell.split for row in steps for cell in row.cells}
        return tuple(sorted(self._rows(splits), key=_order))

    def _rows(self, splits: Mapping[tuple[str, str], TimeSplit]) -> Iterator[RankRow]:
        fold = self._fold
        memory = {
            node.node: self._memory.setdefault(node.node, MemoryRows()).update(node.memory)
            for node in fold.nodes.values()
        }
        places = self.places()
        for node, seat in fold.seats(of_connected=False):
            own = fold.owners.own_label(node.node, seat.label)
            current = _CurrentFacts(
                node.ranks.get((seat.role, own)),
                splits.get((seat.role, seat.label)),
                memory[node.node].get(seat.id._replace(label=own)),
                places.get(seat.role, {}).get(seat.label, {}),
            )
            yield _rank_row(fold, node, seat, current)

    def places(self) -> dict[str, Positions]:
        """Role -> layout positions of its ranks; only of ranks on connected nodes."""
        fold, labels = self._fold, dict[str, list[str]]()
        for _, seat in fold.seats():
            labels.setdefault(seat.role, []).append(seat.label)
        nodes = fold.connected
        found: dict[str, Positions] = {}
        for role, names in labels.items():
            layouts = [node.layouts.get(role, NO_LAYOUT) for node in nodes]
            positions = self._places.setdefault(role, RankPositions())
            found[role] = positions.by_rank(layouts, names, partial(fold.layout, role))
        return found


class _CurrentFacts(NamedTuple):
    """Facts of one rank: current facts, split of its last step, memory, layout position."""

    now: RankFacts | None
    last: TimeSplit | None
    memory: MemoryRow | None
    place: Mapping[str, int]


def _rank_row(fold: JobFold, node: NodeRun, seat: Seat, current: _CurrentFacts) -> RankRow:
    """The row of one rank. On a disconnected node: the last report, with state `unknown`."""
    now, memory = current.now, current.memory
    apart_seconds = fold.shift(node).seconds
    is_unknown = seat.is_living and not fold.is_connected(node.node)
    return RankRow(
        role=seat.role,
        rank=seat.label,
        local_rank=_none_if_negative(seat.local_rank),
        world_size=_none_if_negative(seat.world_size),
        node=node.node,
        pid=seat.pid,
        attempt=seat.attempt,
        state="unknown" if is_unknown else seat.state,
        begin_seconds=seat.created_ns / 1e9 + apart_seconds,
        last_event_seconds=_last_event(now, apart_seconds),
        step=now.step if now else None,
        step_begin_seconds=_step_begin(now, apart_seconds),
        inflight=tuple(_open_spans(now, apart_seconds)) if now and not is_unknown else (),
        totals=(now and now.totals) or TimeSplit(),
        current=TimeSplit(),
        last=current.last,
        tokens_total={},
        queue_depth=now.queue_depth if now else {},
        policy_version=None,
        scalars=(),
        stamps=(),
        num_records=now.num_records if now else 0,
        num_lost_records=seat.num_lost_records,
        num_late_records=0,
        num_guest_drops=0,
        host_memory=memory.host if memory else None,
        devices=memory.devices if memory else (),
        ledger=fold.judge.ledger.rows(seat.role, seat.label),
        source="passive" if seat.role == LOG_ROLE else "guest",
        place=current.place,
    )


def _open_spans(rank: RankFacts, apart_seconds: float) -> Iterator[OpenSpan]:
    """Open spans when the node read the rank. ``apart_seconds``: shift to local Unix time."""
    numbers = {f"{a.operation}@{a.group}": a.sequence for a in rank.arrivals}
    stages = set(rank.stages)
    for name, begin_ns in zip(rank.open_spans, rank.opened_ns, strict=False):
        kind: SpanKind = "collective" if name in numbers else "wait"
        kind = "stage" if name in stages else kind
        yield OpenSpan(
            kind=kind,
            name=name,
            begin_seconds=rank.epoch_seconds(begin_ns) + apart_seconds,
            elapsed_seconds=max(0.0, (rank.now_ns - begin_ns) / 1e9),
            step=rank.step if kind != "collective" else None,
            sequence=numbers.get(name),
        )


def _step_begin(rank: RankFacts | None, apart_seconds: float) -> float | None:
    if rank is None or rank.step is None or rank.step_seconds is None:
        return None
    return rank.now_seconds - rank.step_seconds + apart_seconds


def _last_event(rank: RankFacts | None, apart_seconds: float) -> float | None:
    if rank is None or rank.last_event_ns is None:
        return None
    return rank.epoch_seconds(rank.last_event_ns) + apart_seconds


def _first_begin(fold: JobFold, node: NodeRun) -> float | None:
    """Local Unix time when the first process of this node began, even if it has ended since."""
    begin = node.facts.begin_seconds
    return None if begin is None else begin + fold.shift(node).seconds


def _dropped(nodes: Iterable[NodeRun]) -> tuple[DroppedRanks, ...]:
    """Counts of processes that ended long ago, one row per role."""
    found: dict[str, DroppedRanks] = {}
    for row in (row for node in nodes for row in node.facts.dropped):
        total = found.get(row.role, DroppedRanks(row.role, 0, 0, 0))
        found[row.role] = DroppedRanks(
            row.role,
            total.num_ranks + row.num_ranks,
            total.num_records + row.num_records,
            total.num_lost_records + row.num_lost_records,
        )
    return tuple(found.values())


def _order(row: RankRow) -> tuple[str, tuple[int, str]]:
    return row.role, rank_order(row.rank)


def _none_if_negative(value: int) -> int | None:
    return None if value < 0 else value


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Memory of one process at the end of a recent step, from the last report of its node."""

    facts: MemoryFacts
    host: HostMemory | None
    devices: tuple[DeviceMemory, ...]


class MemoryRows:
    """Memory rows of one node; a row is reused until new facts of the process arrive."""

    def __init__(self) -> None:
        self._rows: dict[ProcessId, MemoryRow] = {}

    def update(
        self, facts_by_process: Mapping[ProcessId, MemoryFacts]
    ) -> Mapping[ProcessId, MemoryRow]:
        """Memory rows by process, under the name that the node uses."""
        before = self._rows
        self._rows = {
            process: row
            if (row := before.get(process)) is not None and row.facts is facts
            else _memory_row(facts)
            for process, facts in facts_by_process.items()
        }
        return self._rows


def _memory_row(facts: MemoryFacts) -> MemoryRow:
    host = None
    if facts.samples:
        host = HostMemory(facts.samples[-1][1], _slope(facts.samples), facts.heap)
    devices = (
        DeviceMemory(device.device, None, device.reserved_bytes, device.limit_bytes)
        for device in facts.devices
    )
    return MemoryRow(facts, host, tuple(devices))


def _slope(samples: Samples) -> float | None:
    """Bytes per step between the first and the last quarter; None below 8 steps."""
    if len(samples) < _MIN_SAMPLES:
        return None
    num = len(samples) // _NUM_PARTS
    first, last = samples[:num], samples[-num:]
    steps = median(step for step, _ in last) - median(step for step, _ in first)
    return (median(held for _, held in last) - median(held for _, held in first)) / max(1, steps)
