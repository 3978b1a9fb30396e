"""One collective, booked by hand: every nanosecond that a rank was blocked goes somewhere once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.node.collectives.waits import Book, DeviceSlot, Slot, waits_by_duration
from dfx_agent.node.segments.records import DeviceTime

SPANS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 100)).map(lambda s: (min(s), max(s))), max_size=5
)
COUNTS = ("peers_ns", "transfer_ns", "unmatched_ns", "peers_by_duration_ns",
          "transfer_by_duration_ns")  # fmt: skip


def booked(operation: str, last: int, *spans: tuple[int, int], is_misaligned=False) -> list[Book]:
    slot = Slot(operation)
    slot.last_arrival_ns, slot.is_misaligned = last, is_misaligned
    books = [Book([]) for _ in spans]
    slot.blocked = [(book, *span) for book, span in zip(books, spans, strict=True)]
    slot.book()
    assert slot.blocked == []
    return books


def counts(book: Book) -> tuple[int, ...]:
    return tuple(getattr(book, name) for name in COUNTS)


def test_before_the_last_arrival_it_waits_and_after_it_transfers():
    early, last, late, left = booked("broadcast", 50, (10, 70), (50, 70), (60, 70), (10, 40))
    assert [counts(book) for book in (early, last, late, left)] == [
        (40, 20, 0, 0, 0), (0, 20, 0, 0, 0), (0, 10, 0, 0, 0), (30, 0, 0, 0, 0),
    ]  # fmt: skip
    assert [b.transfers for b in (early, last, late, left)] == [[(10, 20)], [(50, 20)], [(60, 10)],
                                                                []]  # fmt: skip


def test_who_leaves_a_synchronising_one_before_the_last_came_has_another_clock():
    books = booked("all_reduce", 50, (10, 40), (1050, 1060))
    assert [counts(book) for book in books] == [(0, 0, 0, 20, 10), (0, 0, 0, 0, 10)]
    assert [book.transfers for book in books] == [[(10, 10)], [(1050, 10)]]
    books = booked("all_reduce", 50, (10, 50), (50, 50))
    assert [counts(book) for book in books] == [(40, 0, 0, 0, 0), (0, 0, 0, 0, 0)]


@given(st.sampled_from(["all_reduce", "broadcast"]), st.integers(0, 100), SPANS, st.booleans())
def test_all_time_is_booked_once(operation, last, spans, is_misaligned):
    books = booked(operation, last, *spans, is_misaligned=is_misaligned)
    for book, (begin, end) in zip(books, spans, strict=True):
        assert sum(counts(book)) == end - begin
        assert all(count >= 0 for count in counts(book))
        assert (book.unmatched_ns == end - begin) if is_misaligned else book.unmatched_ns == 0


@given(st.lists(st.integers(0, 10**12), max_size=6))
def test_the_shortest_has_not_waited(durations):
    waits = waits_by_duration(durations)
    shortest = min(durations, default=0)
    assert [w + shortest for w in waits] == durations
    assert not waits or min(waits) == 0


def on_devices(operation: str, *told: tuple[str, int, int]) -> list[Book]:
    """(operation, duration, stood) of each rank."""
    slot, books = DeviceSlot(operation), []
    for rank, (name, duration, stood) in enumerate(told):
        books.append(Book([]))
        fields = dict.fromkeys(DeviceTime._fields, 0)
        fields.update(operation=name, group="0", duration_ns=duration, stood_ns=stood)
        slot.add(1 << rank, books[-1], DeviceTime(**fields), 7 + rank)
    mask = (1 << len(told)) - 1
    assert (slot.arrived, slot.through, slot.last_record_ns) == (mask, mask, 6 + len(told))
    slot.book()
    assert slot.blocked == []
    return books


def device_counts(book: Book) -> tuple[int, int, int]:
    return book.device_peers_ns, book.device_transfer_ns, book.device_unmatched_ns


def test_on_devices_the_shortest_is_transfer_and_the_rest_was_for_peers():
    same = "all_reduce"
    books = on_devices(same, (same, 100, 90), (same, 30, 30), (same, 30, 10))
    assert [device_counts(book) for book in books] == [(60, 30, 0), (0, 30, 0), (0, 10, 0)]


@pytest.mark.parametrize("operations", [("all_reduce", "barrier"), ("broadcast", "broadcast")])
def test_on_devices_it_is_not_known_where_operations_differ_or_the_root_may_leave(operations):
    books = on_devices(operations[0], *((name, 100, 90) for name in operations))
    assert [device_counts(book) for book in books] == [(0, 0, 90), (0, 0, 90)]


def test_rows_are_seconds_by_method():
    book = Book([])
    assert [row.method for row in book.rows("0", "train")] == ["arrival"]
    book.num_collectives, book.num_bytes, book.num_on_device = 3, 8.0, 2
    for at, name in enumerate(COUNTS, start=1):
        setattr(book, name, at * 10**9)
    book.device_peers_ns, book.device_transfer_ns, book.device_unmatched_ns = (
        n * 10**9 for n in (6, 7, 8)
    )
    rows = [(r.method, r.num_collectives, r.num_bytes, r.peers_seconds, r.transfer_seconds,
             r.unmatched_seconds) for r in book.rows("0", "train")]  # fmt: skip
    assert rows == [
        ("arrival", 3, 8.0, 1, 2, 3), ("duration", 0, 0.0, 4, 5, 0), ("device", 2, None, 6, 7, 8),
    ]  # fmt: skip
    book.peers_by_duration_ns = 0
    assert [row.method for row in book.rows("0", "train")] == ["arrival", "duration", "device"]
