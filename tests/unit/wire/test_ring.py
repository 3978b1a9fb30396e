"""The ring under arbitrary schedules, torn records, holes, lapping and racing copies."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_scene import I64, U16, U32, U64, Ring, is_intact, packed

from dfx_agent.wire.records import RECORD
from dfx_agent.wire.ring import (
    InflightWriter,
    RingReader,
    WriteBuffer,
    make_end_span,
    read_inflight,
)

CAPACITIES = st.sampled_from([64, 128, 256])
SLOW = settings(max_examples=60, deadline=None)


def numbers(packed: bytes) -> list[int]:
    records = list(RECORD.iter_unpack(packed))
    assert all(map(is_intact, records))
    return [record[0] for record in records]


@given(
    st.tuples(
        st.integers(0, U64),
        st.integers(0, U64),
        st.integers(0, U64),
        st.floats(),
        st.integers(-I64, I64 - 1),
        st.integers(0, U32),
        st.integers(0, U32),
        st.integers(0, U32),
        st.integers(0, U16),
        st.integers(0, U16),
        st.integers(0, U64),
    )
)
def test_a_record_is_64_bytes_and_comes_back_bit_for_bit(fields):
    data = RECORD.pack(*fields)
    back = RECORD.unpack(data)
    assert len(data) == 64
    assert RECORD.pack(*back) == data
    for before, after in zip(fields, back, strict=True):
        assert before == after or (math.isnan(before) and math.isnan(after))


@given(
    st.floats(),
    st.integers(-I64, I64 - 1),
    st.integers(0, U32),
    st.integers(0, U64),
    st.integers(0, U16),
)
def test_what_emit_writes_is_what_poll_returns(value, step, span, t0, kind):
    ring = Ring()
    ring._emit(t0, U64, value, step, span, U32, 7, kind, U16)
    (record,) = RECORD.iter_unpack(ring.reader.poll())
    assert record[:3] == (1, t0, U64)
    assert record[3] == value or math.isnan(value)
    assert record[4:] == (step, span, U32, 7, kind, U16, 1)


@SLOW
@given(CAPACITIES, st.lists(st.integers(0, 200), max_size=40), st.booleans())
def test_any_schedule_accounts_for_every_record(num_records, schedule, weakly_ordered):
    ring = Ring(num_records, weakly_ordered=weakly_ordered)
    seen: list[int] = []
    for count in schedule:
        if count:
            ring.write(count)
        else:
            seen += numbers(ring.reader.poll())
    for _ in range(3):
        seen += numbers(ring.reader.poll())
    assert seen == sorted(set(seen))
    assert ring.reader.num_pending == 0
    assert len(seen) == ring.reader.num_read
    assert ring.reader.num_read + ring.reader.num_lost == ring.written


@SLOW
@given(CAPACITIES, st.lists(st.integers(0, 600), min_size=1, max_size=12))
def test_only_what_was_overwritten_is_lost(num_records, bursts):
    ring = Ring(num_records)
    for burst in bursts:
        ring.write(burst)
        got = numbers(ring.reader.poll())
        assert got == list(range(ring.written - min(burst, num_records) + 1, ring.written + 1))


@SLOW
@given(st.lists(st.integers(0, 80), max_size=25), st.integers(1, 40))
def test_a_small_limit_loses_nothing_when_the_ring_is_not_lapped(bursts, limit):
    ring = Ring(4096)
    seen: list[int] = []
    for burst in bursts:
        ring.write(burst)
        seen += numbers(ring.reader.poll(limit))
    while got := numbers(ring.reader.poll(limit)):
        seen += got
    assert seen == list(range(1, ring.written + 1))
    assert ring.reader.num_lost == 0


@SLOW
@given(st.integers(0, 300), st.integers(0, 64), st.integers(0, 10), st.booleans())
def test_a_torn_record_is_never_returned(before, cut, after, zero_only):
    """Half-written: zero-filled up to ``cut`` over the old record, or filled up to ``cut``."""
    ring = Ring()
    ring.write(before)
    numbers(ring.reader.poll())
    old = bytes(ring.buffer[ring.slot(before + 1)])
    torn = ring.hole()
    if zero_only:
        ring.buffer[ring.slot(torn)] = bytes(cut) + old[cut:]
        is_whole = False
    else:
        is_whole = ring.fill(torn, cut)
    ring.write(after)
    got = numbers(ring.reader.poll()) + numbers(ring.reader.poll())
    assert got == [n for n in range(before + 1, ring.written + 1) if n != torn or is_whole]
    ring.fill(torn)
    assert numbers(ring.reader.poll()) == ([] if is_whole else [torn])
    assert ring.reader.num_lost == max(0, before - 64)


@SLOW
@given(st.data())
def test_late_holes_come_once_and_abandoned_holes_are_lost_once(data):
    ring = Ring(256)
    late: set[int] = set()
    never: set[int] = set()
    for kind in data.draw(st.lists(st.sampled_from("wwwln"), max_size=60)):
        if kind == "w":
            ring.write()
        else:
            (late if kind == "l" else never).add(ring.hole())
    ring.write()
    seen = numbers(ring.reader.poll())
    assert ring.reader.num_pending == len(late | never)
    for seq in data.draw(st.permutations(sorted(late))):
        ring.fill(seq)
        seen += numbers(ring.reader.poll(64))
    for _ in range(50):
        seen += numbers(ring.reader.poll())
    assert sorted(seen) == [n for n in range(1, ring.written + 1) if n not in never]
    assert ring.reader.num_lost == len(never)
    for seq in never:
        ring.fill(seq)
    assert ring.reader.poll() == b""
    assert ring.reader.num_lost == len(never)


def test_close_counts_open_holes_as_lost():
    ring = Ring()
    ring.hole()
    ring.write()
    assert numbers(ring.reader.poll()) == [2]
    assert ring.reader.drain() == b""
    assert (ring.reader.num_read, ring.reader.num_lost, ring.reader.num_pending) == (1, 1, 0)


@pytest.mark.parametrize("num_holes", [1, 63, 64, 65, 128, 500])
@pytest.mark.parametrize("before", [0, 30])
def test_records_behind_any_number_of_holes_are_found(num_holes, before):
    """A writer that fails many times in a row must not blind the reader for good."""
    ring = Ring(1024)
    ring.write(before)
    for _ in range(num_holes):
        ring.hole()
    ring.write(10)
    seen: list[int] = []
    for _ in range(60):
        seen += numbers(ring.reader.poll())
    behind = list(range(before + num_holes + 1, ring.written + 1))
    assert seen == [*range(1, before + 1), *behind]
    assert ring.reader.num_lost == num_holes


def test_one_poll_reads_to_the_end_over_scattered_holes():
    """After a death nobody polls again: what is written must not wait behind a hole."""
    ring = Ring(4096)
    for _ in range(20):
        ring.write(100)
        ring.hole()
    ring.write(100)
    assert len(numbers(ring.reader.poll())) == 2100
    assert ring.reader.num_pending == 20


@pytest.mark.parametrize("position", [61, 62, 63])
def test_a_hole_at_the_end_of_the_ring_does_not_stall_the_reader(position):
    """The stretch after the hole begins at slot 0: the reader has to look there, too."""
    ring = Ring(64)
    ring.write(position - 1)
    assert len(numbers(ring.reader.poll())) == position - 1
    torn = ring.hole()
    ring.write(20)
    seen: list[int] = []
    for _ in range(60):
        seen += numbers(ring.reader.poll())
    assert seen == list(range(torn + 1, torn + 21))
    assert ring.reader.num_lost == 1


@SLOW
@given(CAPACITIES, st.lists(st.integers(0, 200), max_size=30))
def test_weakly_ordered_is_the_same_one_poll_later(num_records, bursts):
    strong, weak = Ring(num_records), Ring(num_records, weakly_ordered=True)
    before: list[int] = []
    for burst in bursts:
        strong.write(burst)
        weak.write(burst)
        now = numbers(strong.reader.poll())
        got = numbers(weak.reader.poll())
        # seen one poll ago, less what this burst has overwritten
        oldest = weak.written - num_records + 1
        assert got == [n for n in before if n >= oldest]
        before = now


def test_weakly_ordered_takes_a_late_record_one_poll_after_it_was_seen():
    ring = Ring(weakly_ordered=True)
    ring.write()
    torn = ring.hole()
    ring.write()
    assert ring.reader.poll() == b""
    ring.fill(torn)
    assert numbers(ring.reader.poll()) == [1, 3], "record 2 is first seen now"
    assert numbers(ring.reader.poll()) == [2]


def stores(ring: Ring) -> Iterator[None]:
    """The writer as single stores: zero-fill by words, then the fields in order; never ends."""
    seq = 0
    while True:
        seq += 1
        at, data = ring.slot(seq).start, packed(seq)
        for word in range(0, 64, 8):
            ring.buffer[at + word : at + word + 8] = bytes(8)
            yield
        for begin, end in [(0, 8), (8, 16), (16, 24), (24, 32), (32, 40), (40, 44), (44, 48)]:
            ring.buffer[at + begin : at + end] = data[begin:end]
            yield
        for begin, end in [(48, 52), (52, 54), (54, 56), (56, 64)]:
            ring.buffer[at + begin : at + end] = data[begin:end]
            if end == 64:
                ring.written = seq
            yield


def racing_read(ring: Ring, advance: Callable[[], None]) -> Callable[[int, int], bytes]:
    """A copy that goes word by word while the writer goes on."""

    def read(offset: int, size: int) -> bytes:
        words = []
        for at in range(offset, offset + size, 8):
            words.append(bytes(ring.buffer[at : at + 8]))
            advance()
        return b"".join(words)

    return read


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.floats(0.0, 0.07), st.integers(0, 8))
def test_copies_that_race_with_the_writer_give_whole_records_only(seed, chance, num_stalls):
    ring, rng = Ring(64), random.Random(seed)
    writer = stores(ring)
    stalls = set(rng.sample(range(6000), num_stalls))
    clock = itertools.count()

    def advance() -> None:
        """Mostly slower than the copy; sometimes the reader is kept off for more than a lap."""
        stalled = next(clock) in stalls
        for _ in range(rng.randrange(4000) if stalled else int(rng.random() < chance)):
            next(writer)

    reader = RingReader(racing_read(ring, advance), 0, 64, weakly_ordered=False)
    seen: list[int] = []
    for _ in range(6):
        seen += numbers(reader.poll(128))
        for _ in range(rng.randrange(400)):
            next(writer)
    chance = 0.0
    stalls.clear()
    for _ in range(30):
        seen += numbers(reader.poll())
    assert len(seen) == len(set(seen))
    assert reader.num_read == len(seen)
    assert reader.num_read + reader.num_lost + reader.num_pending == ring.written


def test_poll_ends_when_the_writer_laps_it_between_any_two_copies(monkeypatch):
    ring = Ring(64)
    num_copies = itertools.count()
    copy = ring.reader._copy

    def lapped_copy(at: int, count: int) -> tuple[list[int], bytes, list[int]]:
        assert next(num_copies) < 1000, "poll goes round for ever"
        ring.write(100)
        return copy(at, count)

    monkeypatch.setattr(ring.reader, "_copy", lapped_copy)
    ring.reader.poll()


@SLOW
@given(st.integers(0, 200), st.integers(0, 64 * 64))
def test_a_file_cut_short_gives_short_reads_and_no_error(count, size):
    ring = Ring()
    ring.write(count)
    reader = RingReader(lambda at, n: bytes(ring.buffer[:size])[at : at + n], 0, 64)
    for _ in range(3):
        numbers(reader.poll())


@given(st.integers(0, 300), st.binary(max_size=64 * 64), st.integers(0, 64 * 64 - 1))
@settings(max_examples=150, deadline=None)
def test_bytes_from_nowhere_never_raise_and_leave_the_rest_readable(count, noise, at):
    ring = Ring()
    ring.write(count)
    end = min(len(ring.buffer), at + len(noise))
    ring.buffer[at:end] = noise[: end - at]
    for _ in range(3):
        ring.reader.poll()
    ring.write(64)
    last = [record[0] for record in RECORD.iter_unpack(ring.reader.poll())]
    assert last[-1:] == [ring.written]


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0xFF])
def test_a_ring_filled_with_one_byte_leads_nowhere(byte):
    ring = Ring()
    ring.write(40)
    assert len(numbers(ring.reader.poll())) == 40
    ring.buffer[:] = bytes([byte]) * len(ring.buffer)
    ring.reader.poll()
    ring.write(30)
    assert numbers(ring.reader.poll()) == list(range(41, 71))
    assert ring.reader.num_lost <= ring.written


def test_inflight_shows_what_is_open_and_only_that():
    buffer = bytearray(5 * 64)
    table = InflightWriter(buffer, 64, 4)
    read = lambda at, n: bytes(buffer[at : at + n])  # noqa: E731
    slots = {span: table.enter(span, 3, span, 0, 1, 2, span) for span in (1, 2, 3, 4)}
    assert sorted(r[5] for r in read_inflight(read, 64, 4)) == [1, 2, 3, 4]
    assert table.enter(5, 3, 5, 0, 1, 2, 5) == 0
    table.leave(slots[2])
    assert sorted(r[5] for r in read_inflight(read, 64, 4)) == [1, 3, 4]
    buffer[slots[3] : slots[3] + 64] = bytes(32) + bytes(buffer[slots[3] + 32 : slots[3] + 64])
    assert sorted(r[5] for r in read_inflight(read, 64, 4)) == [1, 4]


@pytest.mark.parametrize("value", [1.5, "no number"])
def test_the_end_of_a_span_frees_its_slot_and_leaves_no_hole(value):
    buffer = bytearray((64 + 4) * 64)
    read = lambda at, n: bytes(buffer[at : at + n])  # noqa: E731
    table = InflightWriter(buffer, 64 * 64, 4)
    end = make_end_span(WriteBuffer(buffer, 0, 63, itertools.count(1).__next__, table.free_slots))
    slots = [table.enter(1, 3, span, 0, 1, 2, span) for span in (1, 2)]
    if value == 1.5:
        end(slots[0], 1, 9, value, 3, 1, 0, 1, 2, 7)
    else:
        with pytest.raises(struct.error):
            end(slots[0], 1, 9, value, 3, 1, 0, 1, 2, 7)
    end(0, 1, 9, 0.5, 3, 8, 0, 1, 2, 7)  # one that got no slot
    assert [r[5] for r in read_inflight(read, 64 * 64, 4)] == [2]
    assert sorted(table.free_slots) == sorted({64 * 64 + i * 64 for i in range(4)} - {slots[1]})
    rows = list(RECORD.iter_unpack(RingReader(read, 0, 64, weakly_ordered=False).poll()))
    assert [row[1:10] for row in rows] == [
        (1, 9, 1.5, 3, 1, 0, 1, 2, 7) if value == 1.5 else (0, 0, 0.0, 0, 0, 0, 0, 0, 0),
        (1, 9, 0.5, 3, 8, 0, 1, 2, 7),
    ]


@given(st.binary(min_size=256, max_size=256), st.integers(0, 256))
def test_inflight_never_raises_on_noise(noise, size):
    rows = read_inflight(lambda at, n: noise[:size][at : at + n], 0, 4)
    assert all(row[0] == row[5] == row[10] != 0 for row in rows)
