"""A job as a row of a Snapshot: what facts tell of it; the rest is None or empty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.seat import LOG_ROLE, Seat
from dfx_agent.facts.steps import IDLE, TRANSFER, RankStep, Step
from dfx_agent.job.fold import JobFold
from dfx_agent.job.node_run import NodeRun
from dfx_agent.snapshot import (
    Incident,
    OpenSpan,
    RankRow,
    RunRow,
    SpanKind,
    Standing,
    StepCell,
    StepRow,
    TimeSplit,
    Verdict,
)

_NUM_STEPS = 8


class JobRows:
    """One job; closed steps are made into rows once."""

    def __init__(self, fold: JobFold) -> None:
        self._fold = fold
        self._steps: dict[tuple[str, int, float], StepRow] = {}

    def run(
        self,
        verdicts: tuple[Verdict, ...],
        incidents: tuple[Incident, ...],
        standing: Standing,
    ) -> RunRow:
        """``verdicts`` and what was made of them, as of now."""
        fold = self._fold
        seats, steps = list(fold.seats(of_heard=False)), self._newest_steps()
        newest = {(row.role, cell.rank): cell.split for row in steps for cell in row.cells}
        return RunRow(
            run=fold.run,
            framework=fold.framework,
            attempt=max((seat.attempt for _, seat in seats), default=0),
            begin_seconds=min((_begin(fold, node, seat) for node, seat in seats), default=0.0),
            ranks=tuple(sorted(_rank_rows(fold, seats, newest), key=_order)),
            steps=steps,
            scalars=(),
            verdicts=verdicts,
            signals=fold.health.state,
            ledger=fold.ledger.state(),
            num_late_signals=fold.health.num_late,
            faults=fold.faults.rows(fold.run),
            judged_seconds=fold.faults.judged_seconds(fold.run),
            incidents=incidents,
            standing=standing,
        )

    def _newest_steps(self) -> tuple[StepRow, ...]:
        """Closed steps of every role, oldest first."""
        shown = {
            (role, step.step, step.begin_seconds): step
            for role, steps in self._fold.steps.items()
            for step in list(steps.rows)[-_NUM_STEPS:]
        }
        before = self._steps
        self._steps = {
            key: before.get(key) or _step_row(key[0], step) for key, step in shown.items()
        }
        return tuple(sorted(self._steps.values(), key=lambda row: row.begin_seconds))


def _step_row(role: str, step: Step) -> StepRow:
    wall = max(of.wall_seconds for of in step.ranks.values())
    cells = tuple(_cell(label, of) for label, of in step.ranks.items())
    active = sum(cell.split.active_seconds for cell in cells)
    bubble = 1 - active / (len(cells) * wall) if wall > 0 else None
    begin = step.begin_seconds
    return StepRow(step.step, role, begin, begin + wall, (), bubble, cells)


def _cell(label: str, of: RankStep) -> StepCell:
    tokens = {} if of.num_tokens is None else {"all": of.num_tokens}
    return StepCell(label, split_of(of), tokens)


def split_of(of: RankStep) -> TimeSplit:
    """Where the time of a step went. Waits for peers are those in collectives, transfer too."""
    stages = {name: s for (kind, name), s in of.parts.items() if kind == "stage"}
    waits = {name: {"": s} for (kind, name), s in of.parts.items() if kind == "wait"}
    blocked = of.waited_seconds + of.parts.get(TRANSFER, 0.0)
    if blocked:
        waits["collective"] = {"": blocked}
    idle = of.parts.get(IDLE, 0.0)
    waited = sum(seconds for places in waits.values() for seconds in places.values())
    active = max(0.0, of.wall_seconds - waited - idle)
    return TimeSplit(of.wall_seconds, active, idle, stages, waits)


def _rank_rows(
    fold: JobFold,
    seats: Iterable[tuple[NodeRun, Seat]],
    newest: dict[tuple[str, str], TimeSplit],
) -> Iterator[RankRow]:
    for node, seat in seats:
        own = fold.places.own_label(node.node, seat.label)
        known = node.ranks.get((seat.role, own))
        last = newest.get((seat.role, seat.label))
        yield _rank_row(fold, node, seat, known, last)


def _rank_row(
    fold: JobFold, node: NodeRun, seat: Seat, known: RankFacts | None, last: TimeSplit | None
) -> RankRow:
    """Of a node that is not heard: as it was told last, in a state that nobody knows."""
    apart_seconds = fold.shift(node).seconds
    is_unknown = seat.is_living and not fold.is_heard(node.node)
    return RankRow(
        role=seat.role,
        rank=seat.label,
        local_rank=_known(seat.local_rank),
        world_size=_known(seat.world_size),
        node=node.node,
        pid=seat.pid,
        attempt=seat.attempt,
        state="unknown" if is_unknown else seat.state,
        begin_seconds=_begin(fold, node, seat),
        last_event_seconds=_last_event(known, apart_seconds),
        step=known.step if known else None,
        step_begin_seconds=None,
        inflight=tuple(_open_spans(known, apart_seconds)) if known and not is_unknown else (),
        totals=TimeSplit(),
        current=TimeSplit(),
        last=last,
        tokens_total={},
        queue_depth={},
        policy_version=None,
        scalars=(),
        stamps=(),
        num_records=known.num_records if known else 0,
        num_lost_records=seat.num_lost_records,
        num_late_records=0,
        num_guest_drops=0,
        source="passive" if seat.role == LOG_ROLE else "guest",
    )


def _open_spans(rank: RankFacts, apart_seconds: float) -> Iterator[OpenSpan]:
    """As of the instant at which its node looked; ``apart_seconds`` to our Unix time."""
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


def _last_event(rank: RankFacts | None, apart_seconds: float) -> float | None:
    if rank is None or rank.last_event_ns is None:
        return None
    return rank.epoch_seconds(rank.last_event_ns) + apart_seconds


def _begin(fold: JobFold, node: NodeRun, seat: Seat) -> float:
    return seat.created_ns / 1e9 + fold.shift(node).seconds


def _order(row: RankRow) -> tuple[str, int, str]:
    head = row.rank.partition("@")[0].partition(".")[0]
    return (row.role, int(head), row.rank) if head.isdigit() else (row.role, 1 << 31, row.rank)


def _known(value: int) -> int | None:
    return None if value < 0 else value
