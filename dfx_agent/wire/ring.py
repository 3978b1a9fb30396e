"""The ring of records and the table of open spans, in one buffer that both sides share.

Writer: ``next(itertools.count())`` chooses the slot and ONE ``pack_into`` writes the record. Both
are atomic under the GIL, so any number of threads and tasks write without a lock (a lock costs 15
times as much with 4 threads). There is no shared write index: a record is complete when its head
and its tail both contain the number that the reader expects. A full ring overwrites its oldest
record.

Reader: it copies a range of slots three times. The tails come from the first copy, the bodies from
the second, the heads from the third. A matching tail in the first copy proves that the record was
complete before the second copy. The same head in the third copy proves that nobody began to
overwrite the record before the second copy was done. On a weakly ordered processor (Arm), a record
is returned one poll after it was first seen. Free-threaded Python is not supported.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from mmap import mmap
from typing import NamedTuple

from dfx_agent.wire.layout import RECORD_BYTES, WORD
from dfx_agent.wire.records import RECORD, Record

# arguments: t0_ns, t1_ns, value, step, span, parent, thread, kind, name
Emit = Callable[[int, int, float, int, int, int, int, int, int], None]
# arguments: slot of the open span to release (0 for none), then those of Emit
EndSpan = Callable[[int, int, int, float, int, int, int, int, int, int], None]
Read = Callable[[int, int], bytes]  # (offset, size) -> bytes, shorter at the end of the file

_FIRST_CHUNK, _LARGEST_CHUNK = 64, 2048
_MAX_POLLS_OF_HOLE = 20  # then the missing record counts as lost
_MAX_LAPS = 8  # in one poll: a faster writer must not block the reader forever
_SEARCH_FULL_RING_EVERY = 16  # polls without records
_MAX_RECORDS_BETWEEN_POLLS = 1 << 44  # a larger number is corrupted
_STRONGLY_ORDERED = frozenset({"x86_64", "i686"})


class WriteBuffer(NamedTuple):
    """The writable parts of a segment, for code that packs records without calling ``Emit``.

    Record ``number = next_number()`` belongs at ``offset + ((number & mask) << 6)``.
    """

    buffer: mmap | bytearray
    offset: int
    """First byte of the ring."""
    mask: int
    """Number of records in the ring, less one."""
    next_number: Callable[[], int]
    free_slots: list[int]
    """Offsets of unused slots in the table of open spans."""

    def write_empty(self, number: int) -> None:
        """Write an empty record under a number that is already used, so that no reader waits."""
        at = self.offset + ((number & self.mask) << 6)
        RECORD.pack_into(self.buffer, at, number, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, number)


def make_emit(
    buffer: mmap | bytearray,
    offset: int,
    num_records: int,
    numbers: Iterator[int] | None = None,
) -> Emit:
    """Return the function that writes records; ``num_records`` is a power of two."""
    pack_into = RECORD.pack_into
    next_number = (numbers or itertools.count(1)).__next__
    mask = num_records - 1

    def emit(  # noqa: PLR0913, PLR0917 (one record; keywords would cost)
        t0_ns: int, t1_ns: int, value: float, step: int, span: int, parent: int, thread: int,
        kind: int, name: int,
    ) -> None:  # fmt: skip
        seq = next_number()
        at = offset + ((seq & mask) << 6)
        try:
            pack_into(
                buffer, at,
                seq, t0_ns, t1_ns, value, step, span, parent, thread, kind, name, seq,
            )  # fmt: skip
        except Exception:
            # a value that does not fit: without a record of this number the reader would wait
            pack_into(buffer, at, seq, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, seq)
            raise

    return emit


def make_end_span(write_buffer: WriteBuffer) -> EndSpan:
    """Return a function that does ``emit`` and then ``leave``: one call, not two, per span."""
    buffer, offset, mask, next_number, push = *write_buffer[:4], write_buffer.free_slots.append
    pack_into, clear = RECORD.pack_into, WORD.pack_into

    def end_span(  # noqa: PLR0913, PLR0917 (one record; keywords would cost)
        slot: int, t0_ns: int, t1_ns: int, value: float, step: int, span: int, parent: int,
        thread: int, kind: int, name: int,
    ) -> None:  # fmt: skip
        seq = next_number()
        at = offset + ((seq & mask) << 6)
        try:
            pack_into(
                buffer, at,
                seq, t0_ns, t1_ns, value, step, span, parent, thread, kind, name, seq,
            )  # fmt: skip
        except Exception:
            pack_into(buffer, at, seq, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, seq)  # as in ``emit``
            raise
        finally:
            if slot:
                clear(buffer, slot, 0)
                push(slot)

    return end_span


class InflightWriter:
    """Writes the table of open spans. A free slot is a list pop, so threads need no lock.

    ``enter(t0_ns, step, span, parent, thread, kind, name)`` returns the slot to pass to ``leave``,
    or 0 when no slot is free. Both are closures, which are a third faster than methods.
    """

    def __init__(self, buffer: mmap | bytearray, offset: int, num_slots: int) -> None:
        self.free_slots = [offset + i * RECORD_BYTES for i in reversed(range(num_slots))]
        self.enter, self.leave = _make_enter_and_leave(buffer, self.free_slots)


def _make_enter_and_leave(
    buffer: mmap | bytearray, free_slots: list[int]
) -> tuple[Callable[[int, int, int, int, int, int, int], int], Callable[[int], None]]:
    pack_into, clear = RECORD.pack_into, WORD.pack_into
    pop, push = free_slots.pop, free_slots.append

    def enter(
        t0_ns: int, step: int, span: int, parent: int, thread: int, kind: int, name: int
    ) -> int:
        try:
            slot = pop()
        except IndexError:
            return 0
        pack_into(buffer, slot, span, t0_ns, 0, 0.0, step, span, parent, thread, kind, name, span)
        return slot

    def leave(slot: int) -> None:
        clear(buffer, slot, 0)
        push(slot)

    return enter, leave


def read_inflight(read: Read, offset: int, num_slots: int) -> list[Record]:
    """Read the spans that are open now, without slots that are being written."""
    size = num_slots * RECORD_BYTES
    tails, bodies, heads = read(offset, size), read(offset, size), read(offset, size)
    size = min(len(tails), len(bodies), len(heads)) // RECORD_BYTES * RECORD_BYTES
    marks = zip(_tails(tails[:size]), _heads(heads[:size]), strict=True)
    used = [(slot, head) for slot, (tail, head) in enumerate(marks) if head and head == tail]
    rows = [(RECORD.unpack_from(bodies, slot * RECORD_BYTES), head) for slot, head in used]
    return [row for row, head in rows if head == row[0] == row[5]]


def open_slots(table: bytes) -> list[Record]:
    """Open spans of the current process, whose own slots are never half-written."""
    used = [slot for slot, head in enumerate(_heads(table)) if head]
    return [RECORD.unpack_from(table, slot * RECORD_BYTES) for slot in used]


class RingReader:
    """Follows one ring. ``num_read + num_lost + num_pending`` equals the highest number seen."""

    def __init__(
        self,
        read: Read,
        offset: int,
        num_records: int,
        *,
        weakly_ordered: bool = os.uname().machine not in _STRONGLY_ORDERED,
    ) -> None:
        self._read = read
        self._offset = offset
        self._num_records = num_records
        self._next = 1
        self._holes: dict[int, int] = {}
        # runs one poll ahead and notes which records were incomplete
        self._scout = (
            RingReader(read, offset, num_records, weakly_ordered=False) if weakly_ordered else None
        )
        self._num_empty_polls = 0
        self._first_chunk = _FIRST_CHUNK
        self.num_read = 0
        self.num_lost = 0

    @property
    def position(self) -> int:
        """Number of the last record that was read or counted as lost; 0 before the first."""
        return self._next - 1

    @property
    def num_pending(self) -> int:
        """How many records have a number but are not complete yet."""
        return len(self._holes)

    def seems_empty(self) -> bool:
        """Whether the next record is not written. Records after an incomplete one do not count."""
        at = self._offset + (self._next & (self._num_records - 1)) * RECORD_BYTES
        head = self._read(at, WORD.size)
        return not self._holes and len(head) == WORD.size and WORD.unpack(head)[0] < self._next

    def poll(self, limit: int = 1 << 16) -> bytearray:
        """Packed records since the last poll, about ``limit`` at most, oldest first.

        A record that was completed late comes after younger ones. Records stay packed because
        unpacking all of them doubles the cost for a reader that needs few fields.
        """
        until = self._scout._next if self._scout else None  # noqa: SLF001 (its own twin)
        records = self._fill_holes() if self._holes else bytearray()
        chunk, laps = self._first_chunk, 0
        while len(records) < limit * RECORD_BYTES:
            before = self._next
            is_complete, lapped = self._read_next(chunk, until, laps, records)
            laps += lapped
            if self._next == before or not (is_complete or lapped) or laps > _MAX_LAPS:
                break
            chunk = min(chunk * 2, _LARGEST_CHUNK)
        if self._scout:
            self._scout.poll(limit)
        if not records:
            self._num_empty_polls += 1
            if self._num_empty_polls % _SEARCH_FULL_RING_EVERY == 0:
                self._read_next(self._num_records, until, 0, records)
        num_records = len(records) // RECORD_BYTES
        self.num_read += num_records
        # expect as many records as this time, and a few more to see the end
        self._first_chunk = min(num_records + _FIRST_CHUNK, _LARGEST_CHUNK)
        return records

    def drain(self) -> bytearray:
        """Read everything that is left after the writer exited. Incomplete records are lost."""
        self._scout = None
        records = self.poll(self._num_records * 2)
        rest = bytearray()
        self._read_next(self._num_records, None, 0, rest)
        self.num_read += len(rest) // RECORD_BYTES
        records += rest
        self.num_lost += len(self._holes)
        self._holes.clear()
        return records

    def _read_next(
        self, chunk: int, until: int | None, laps: int, out: bytearray
    ) -> tuple[bool, bool]:
        """Append the next records to ``out``. Returns (all were complete, the writer lapped us)."""
        first = self._next
        at = first & (self._num_records - 1)
        count = min(chunk, self._num_records)
        if until is not None:
            count = min(count, until - first)
        if count <= 0:
            return False, False
        tails, bodies, heads = self._copy(at, count)
        num_new = max(0, max(heads, default=0) - first + 1)
        expected = list(range(first, first + len(heads)))
        if (
            num_new <= len(heads)
            and tails[:num_new] == heads[:num_new] == expected[:num_new]
            and max(tails, default=0) < first + num_new
            and not self._incomplete_in_scout()
        ):
            out += bodies[: num_new * RECORD_BYTES]
            self._next += num_new
            return num_new == count, False
        if self._highest_number(at, tails, heads) >= first + self._num_records:
            self._skip_overwritten(margin=laps and self._num_records // 8)
            return False, True
        return self._append_complete(expected, tails, bodies, heads, out), False

    def _highest_number(self, at: int, tails: list[int], heads: list[int]) -> int:
        """Highest number of a complete record in its right slot, so that corruption is ignored."""
        mask = self._num_records - 1
        rows = enumerate(zip(tails, heads, strict=True), start=at)
        limit = self._next + _MAX_RECORDS_BETWEEN_POLLS
        return max(
            (head for i, (tail, head) in rows if head == tail < limit and head & mask == i & mask),
            default=0,
        )

    def _append_complete(
        self, expected: list[int], tails: list[int], bodies: bytes, heads: list[int], out: bytearray
    ) -> bool:
        unsettled = self._incomplete_in_scout()
        rows = zip(expected, tails, heads, strict=True)
        good = [seq == tail == head and seq not in unsettled for seq, tail, head in rows]
        if True not in good:
            return False
        last = len(good) - 1 - good[::-1].index(True)
        for i in range(last + 1):
            if good[i]:
                out += bodies[i * RECORD_BYTES : (i + 1) * RECORD_BYTES]
            else:
                self._holes[expected[i]] = 0
        self._next = expected[last] + 1
        return good[-1]

    def _skip_overwritten(self, margin: int) -> None:
        """Continue at the oldest record left, plus ``margin`` if the writer laps us repeatedly."""
        tails, _, heads = self._copy(0, self._num_records)
        oldest = self._highest_number(0, tails, heads) - self._num_records + 1 + margin
        self.num_lost += max(0, oldest - self._next)
        self._next = max(oldest, self._next)

    def _fill_holes(self) -> bytearray:
        filled = bytearray()
        for seq in list(self._holes):
            if seq in self._incomplete_in_scout():
                continue
            tails, bodies, heads = self._copy(seq & (self._num_records - 1), 1)
            if tails == heads == [seq]:
                filled += bodies
            elif heads and heads[0] <= seq and self._holes[seq] < _MAX_POLLS_OF_HOLE:
                self._holes[seq] += 1
                continue
            else:
                self.num_lost += 1
            del self._holes[seq]
        return filled

    def _incomplete_in_scout(self) -> dict[int, int]:
        """On a weakly ordered processor: records that were incomplete at the last poll."""
        return self._scout._holes if self._scout else {}  # noqa: SLF001 (its own twin)

    def _copy(self, at: int, count: int) -> tuple[list[int], bytes, list[int]]:
        first, bodies, last = (self._read_slots(at, count) for _ in range(3))
        size = min(len(first), len(bodies), len(last)) // RECORD_BYTES * RECORD_BYTES
        return _tails(first[:size]), bodies[:size], _heads(last[:size])

    def _read_slots(self, at: int, count: int) -> bytes:
        """Read ``count`` slots from slot ``at``, continuing at the start of the ring if needed."""
        ahead = min(count, self._num_records - at)
        data = self._read(self._offset + at * RECORD_BYTES, ahead * RECORD_BYTES)
        if ahead == count or len(data) < ahead * RECORD_BYTES:
            return data
        return data + self._read(self._offset, (count - ahead) * RECORD_BYTES)


def _tails(data: bytes) -> list[int]:
    return memoryview(data).cast("Q")[7::8].tolist()


def _heads(data: bytes) -> list[int]:
    return memoryview(data).cast("Q")[::8].tolist()
