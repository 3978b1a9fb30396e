"""Each check against a record that changes between the reader's three copies, alone.

A reader without the check of tails, or of heads, takes the torn record: in the quick way, beside a
hole, where a hole is filled late, and in the table of open spans.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ring_scene import Ring, is_intact, packed

from dfx_agent.wire.records import RECORD
from dfx_agent.wire.ring import RingReader, read_inflight

Change = Callable[[], None]
TORN = 5


class Copies:
    """Reads a ring, and changes it right before the copy of this number."""

    def __init__(self, ring: Ring, changes: dict[int, Change]) -> None:
        self.ring, self.changes, self.num_copies = ring, changes, 0

    def read(self, offset: int, size: int) -> bytes:
        self.num_copies += 1
        self.changes.pop(self.num_copies, lambda: None)()
        return bytes(self.ring.buffer[offset : offset + size])


def torn_by_head(ring: Ring, first_copy: int) -> dict[int, Change]:
    """Whole in the first copy; overwriting begins before the second: the head is gone."""
    return {first_copy + 1: lambda: _write(ring, bytes(16) + packed(TORN)[16:])}


def torn_by_tail(ring: Ring, first_copy: int) -> dict[int, Change]:
    """Half-written in the first two copies, whole in the third: only the tail came late."""
    _write(ring, packed(TORN)[:24].ljust(64, b"\0"))
    return {first_copy + 2: lambda: _write(ring, packed(TORN))}


def _write(ring: Ring, data: bytes) -> None:
    ring.buffer[ring.slot(TORN)] = data


def taken(reader: RingReader) -> list[int]:
    records = list(RECORD.iter_unpack(reader.poll()))
    assert all(is_intact(record) for record in records), records
    return [record[0] for record in records]


@pytest.mark.parametrize("tear", [torn_by_head, torn_by_tail])
@pytest.mark.parametrize("beside_a_hole", [False, True])
def test_a_record_that_changes_between_the_copies(tear, beside_a_hole) -> None:
    ring = Ring()
    ring.write(8)
    if beside_a_hole:
        ring.buffer[ring.slot(2)] = bytes(64)
    reader = RingReader(Copies(ring, tear(ring, 1)).read, 0, 64, weakly_ordered=False)
    assert TORN not in taken(reader)


@pytest.mark.parametrize("tear", [torn_by_head, torn_by_tail])
def test_a_hole_that_is_filled_between_the_copies(tear) -> None:
    ring = Ring()
    ring.write(8)
    ring.buffer[ring.slot(TORN)] = bytes(64)
    copies = Copies(ring, {})
    reader = RingReader(copies.read, 0, 64, weakly_ordered=False)
    assert TORN not in taken(reader)
    _write(ring, packed(TORN))
    copies.changes = tear(ring, copies.num_copies + 1)
    assert taken(reader) == []


@pytest.mark.parametrize("tear", [torn_by_head, torn_by_tail])
def test_an_open_span_that_changes_between_the_copies(tear) -> None:
    ring = Ring()
    ring.write(8)
    rows = read_inflight(Copies(ring, tear(ring, 1)).read, 0, 64)
    assert all(is_intact(row) for row in rows)
    assert TORN not in {row[0] for row in rows}


@pytest.mark.parametrize("num_bytes", range(8, 60, 4))
def test_an_open_span_with_a_late_tail(num_bytes) -> None:
    """Its number may be there already, as head and as span, and its name not."""
    ring = Ring()
    ring.write(8)
    _write(ring, packed(TORN)[:num_bytes].ljust(64, b"\0"))
    copies = Copies(ring, {3: lambda: _write(ring, packed(TORN))})
    assert TORN not in {row[0] for row in read_inflight(copies.read, 0, 64)}


@pytest.mark.parametrize("stale", [slice(0, 8), slice(40, 44)])
def test_an_open_span_with_a_late_part(stale) -> None:
    """A weakly ordered processor shows the marks of a record before all of its body."""
    ring = Ring()
    ring.write(8)
    late = bytearray(packed(TORN))
    late[stale] = packed(TORN - 1)[stale]
    copies = Copies(
        ring, {2: lambda: _write(ring, bytes(late)), 3: lambda: _write(ring, packed(TORN))}
    )
    assert sorted(r[5] for r in read_inflight(copies.read, 0, 64)) == [1, 2, 3, 4, 6, 7, 8]


def test_an_open_span_that_ends_between_the_copies() -> None:
    ring = Ring()
    ring.write(8)
    copies = Copies(ring, {3: lambda: _write(ring, bytes(8) + packed(TORN)[8:])})
    assert TORN not in {row[5] for row in read_inflight(copies.read, 0, 64)}


def test_a_slot_that_was_never_used_is_no_open_span() -> None:
    assert read_inflight(Copies(Ring(), {}).read, 0, 64) == []
