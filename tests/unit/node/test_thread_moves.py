"""Which thread of a process moved: a heartbeat is no sign of life of the thread that trains."""

from __future__ import annotations

from dfx_agent.node.segments.records import Collective
from dfx_agent.node.thread_moves import ThreadMoves
from dfx_agent.node.time.account import SpanEvent
from dfx_agent.wire.records import BLOCKING, COLLECTIVE, LEDGER, RECORD, STAGE, STEP, TOKENS

TRAINER, HELPER = 100, 200


def record(end_ns: int, thread: int, kind: int = STAGE) -> bytes:
    return RECORD.pack(1, end_ns - 1, end_ns, 0.0, 0, 1, 0, thread, kind, 1, 1)


def read(moves: ThreadMoves, *records: bytes, opened: tuple[SpanEvent, ...] = ()) -> None:
    moves.read_records(bytearray(b"".join(records)), opened, TRAINER)


def in_stage(begin_ns: int) -> SpanEvent:
    return SpanEvent(5, 0, STAGE, "backward", begin_ns, None, thread=TRAINER)


def test_a_thread_that_records_on_its_own_is_a_helper():
    moves = ThreadMoves()
    for second in (1, 2, 3):
        own, other = record(second * 10, TRAINER), record(second * 10 + 5, HELPER)
        read(moves, own, other)
    assert moves.has_helpers
    assert (moves.moved_ns, moves.others_ns) == (30, 35)
    read(moves, record(45, HELPER, COLLECTIVE | BLOCKING))
    assert (moves.moved_ns, moves.others_ns) == (30, 45)
    read(moves, record(55, HELPER), opened=(in_stage(50),))  # stuck in a stage
    read(moves, record(65, HELPER), opened=(in_stage(50),))
    assert (moves.moved_ns, moves.others_ns) == (50, 65)


def test_a_thread_of_autograd_moves_for_the_one_that_waits_for_it():
    moves = ThreadMoves()
    for second in (1, 2, 3, 4):
        read(moves, record(second * 10, HELPER), opened=(in_stage(5),))
    assert not moves.has_helpers
    assert moves.moved_ns == 40


def test_who_begins_a_step_trains_whichever_thread_it_is():
    moves = ThreadMoves()
    for thread in (TRAINER, HELPER, TRAINER, HELPER, TRAINER):
        moves.read_records(bytearray(record(10, thread, STEP) + record(20, thread)), (), thread)
    assert not moves.has_helpers


def test_who_reduces_gradients_trains_too():
    moves = ThreadMoves()
    reduced = Collective(
        "ddp_gradients", "7", 1, 0, 1, 8.0, 1, 0, is_blocking=True, is_wait=False, has_failed=False
    )
    for _ in range(4):
        moves.note_collective(reduced, HELPER)
        read(moves, record(20, HELPER))
    assert not moves.has_helpers


def test_records_without_a_thread_report_nothing():
    moves = ThreadMoves()
    for second in range(1, 5):
        read(moves, record(second, 0), record(second, 3, LEDGER), record(second, HELPER, TOKENS))
    assert not moves.has_helpers
    assert moves.others_ns == 0
