"""What the child left, as costs of phases: what each took, how late the loop was in it, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dfx_agent.commands.attribute.child import Outcome
from dfx_agent.commands.attribute.heartbeat import LATE_SECONDS, Stretch
from dfx_agent.node.event_loop import cut_to, loop_step
from dfx_agent.node.segments.records import LoopHeld
from dfx_agent.node.time.account import StepInterval, TimeAccount
from dfx_agent.node.time.sweep import Row
from dfx_agent.snapshot.event_loop import LoopHolder, LoopPhase
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import KIND_MASK, STAGE, WAIT, Record

LEAST_SECONDS = 0.0005  # what took less is left out
_NOBODY = LoopHolder("", 0.0, 0, 0.0)


@dataclass(frozen=True)
class PhaseCost:
    """One phase, without the phases inside it; seconds.

    ``late_seconds`` of it the loop was late by 10 ms or more, at once for ``longest_late_seconds``
    at most; ``held_by`` are those who were seen in it meanwhile, longest first. ``num_late_wakes``
    of the synthetic traffic came 10 ms late or more, and waited ``wake_delay_seconds`` together.
    """

    name: str
    seconds: float
    late_seconds: float
    longest_late_seconds: float
    held_by: tuple[LoopHolder, ...]
    num_late_wakes: int
    wake_delay_seconds: float
    longest_wake_seconds: float


@dataclass(frozen=True)
class Attribution:
    """One run of a step boundary; phases by how long the loop was late in them, then by time.

    ``idle_lag_seconds``: at 99 % in a loop in which nothing else ran, right before.
    ``num_lost_records``: with any, phases are missing. ``error`` is "" where all phases ran.
    """

    phases: tuple[PhaseCost, ...]
    idle_lag_seconds: float
    num_beats: int
    num_tasks: int
    num_wakes: int
    num_lost_records: int
    error: str


def attribution(outcome: Outcome, num_tasks: int) -> Attribution:
    """SegmentError where the child's segment cannot be read."""
    rows, num_lost = _spans(outcome.segment)
    window = _window(outcome, rows)
    rows = cut_to(window, rows)
    beats = _phases(window, rows, _anonymous(outcome.late_beats))
    wakes = _phases(window, rows, _anonymous(outcome.late_wakes))
    looks = [LoopHeld(who, begin, end, (end - begin) / 1e9) for begin, end, who in outcome.held]
    seen = _phases(window, rows, looks)
    names = [name for name, phase in beats.items() if name and phase.seconds >= LEAST_SECONDS]
    costs = [_cost(beats[name], wakes[name], seen[name]) for name in names]
    costs.sort(key=lambda cost: (-cost.late_seconds, -cost.seconds))
    return Attribution(
        tuple(costs), outcome.idle_lag_seconds, outcome.num_beats, num_tasks, outcome.num_wakes,
        num_lost, outcome.error,
    )  # fmt: skip


def _cost(beats: LoopPhase, wakes: LoopPhase, seen: LoopPhase) -> PhaseCost:
    late, delayed = _noticed(beats), _noticed(wakes)
    return PhaseCost(
        name=beats.name,
        seconds=beats.seconds,
        late_seconds=late.seconds,
        longest_late_seconds=late.longest_seconds,
        held_by=seen.holders if late.seconds else (),
        num_late_wakes=delayed.num_times,
        wake_delay_seconds=delayed.seconds,
        longest_wake_seconds=delayed.longest_seconds,
    )


def _noticed(phase: LoopPhase) -> LoopHolder:
    """Nobody where what was late hardly reached into this phase."""
    late = next(iter(phase.holders), _NOBODY)
    return late if late.longest_seconds >= LATE_SECONDS else _NOBODY


def _phases(
    window: StepInterval, rows: Sequence[Row], held: Iterable[LoopHeld]
) -> dict[str, LoopPhase]:
    step = loop_step(window, rows, held)
    return {phase.name: phase for phase in step.phases} if step else {}


def _anonymous(late: Iterable[Stretch]) -> list[LoopHeld]:
    return [LoopHeld("", begin, end, (end - begin) / 1e9) for begin, end in late]


def _window(outcome: Outcome, rows: Sequence[Row]) -> StepInterval:
    """The time from the first phase to the last, accounted as that of any step."""
    account = TimeAccount(outcome.begin_ns)
    account.add({row[1]: row for row in rows})
    account.begin_step(outcome.begin_ns, 0)
    account.begin_step(outcome.end_ns, 1)
    account.advance(outcome.end_ns)
    return account.finished[-1]


def _spans(path: str) -> tuple[list[Row], int]:
    """Stages and waits that have ended, and how many records nobody will read any more."""
    reader = SegmentReader(path)
    try:
        rows = [row for record in reader.drain() if (row := _row(reader, record))]
        return rows, reader.ring.num_lost
    finally:
        reader.close()


def _row(reader: SegmentReader, record: Record) -> Row | None:
    _, begin_ns, end_ns, _, _, span, parent, _, flagged, name_id, _ = record
    kind = flagged & KIND_MASK
    if kind not in (STAGE, WAIT) or not span or end_ns <= begin_ns:
        return None
    return begin_ns, span, end_ns, parent, kind, reader.name(name_id) or ""
