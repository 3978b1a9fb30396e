"""Ring of records and table of open spans over one shared buffer.

Writer: the slot comes from ``next(itertools.count())``, the record from ONE ``pack_into``; both are
atomic under the GIL, so any number of threads and tasks write without a lock (a lock costs 15 times
as much with 4 threads). There is no shared write index: a record is there when its own head and
tail carry the number the reader expects. When full, the oldest record is overwritten.

Reader: copies a stretch three times and takes the tails from the first copy, the bodies from the
second, the heads from the third. A tail in the first says the record was complete before the second
copy; the same head in the third says that no overwriting had begun after it. On a weakly ordered
processor (Arm) a record is taken one poll after it was first seen. Free-threaded Python is not
supported.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from mmap import mmap
from typing import NamedTuple

from dfx_agent.wire.layout import RECORD_BYTES, WORD
from dfx_agent.wire.records import RECORD, Record

# t0_ns, t1_ns, value, step, span, parent, thread, kind, name in this order
Emit = Callable[[int, int, float, int, int, int, int, int, int], None]
# the slot to leave, 0 none; then as Emit
End = Callable[[int, int, int, float, int, int, int, int, int, int], None]
Read = Callable[[int, int], bytes]  # (offset, size) -> bytes, shorter at the end of the file

_FIRST_CHUNK, _LARGEST_CHUNK = 64, 2048
_HOLE_POLLS = 20
_MAX_LAPS = 8  # in one poll: a faster writer must not keep us here for ever
_LOOK_WIDE_EVERY = 16
_FARTHEST = 1 << 44  # records between two polls; more is a corrupted number
_STRONGLY_ORDERED = frozenset({"x86_64", "i686"})


class Memory(NamedTuple):
    """Where a segment's records and open spans are written, for who writes without ``Emit``.

    The record numbered ``take()`` has its place at ``offset + ((number & mask) << 6)``; an open
    span has one of ``free_slots``.
    """

    buffer: mmap | bytearray
    offset: int
    mask: int
    take: Callable[[], int]
    free_slots: list[int]

    def fill(self, number: int) -> None:
        """Leave no hole where a record does not fit: the reader would wait for it."""
        at = self.offset + ((number & self.mask) << 6)
        RECORD.pack_into(self.buffer, at, number, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, number)


def make_emit(
    buffer: mmap | bytearray, offset: int, num_records: int, numbers: Iterator[int] | None = None
) -> Emit:
    """The one function that writes records; ``num_records`` is a power of two."""
    pack_into = RECORD.pack_into
    take = (numbers or itertools.count(1)).__next__
    mask = num_records - 1

    def emit(  # noqa: PLR0913, PLR0917 (one record; keywords would cost)
        t0_ns: int, t1_ns: int, value: float, step: int, span: int, parent: int, thread: int,
        kind: int, name: int,
    ) -> None:  # fmt: skip
        seq = take()
        at = offset + ((seq & mask) << 6)
        try:
            pack_into(
                buffer, at,
                seq, t0_ns, t1_ns, value, step, span, parent, thread, kind, name, seq,
            )  # fmt: skip
        except Exception:
            # a value that does not fit must not leave a hole: the reader would wait for it
            pack_into(buffer, at, seq, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, seq)
            raise

    return emit


def make_end(memory: Memory) -> End:
    """``emit``, then ``leave``, in one function: in a training each function runs cold."""
    buffer, offset, mask, take, push = *memory[:4], memory.free_slots.append
    pack_into, clear = RECORD.pack_into, WORD.pack_into

    def end(  # noqa: PLR0913, PLR0917 (one record; keywords would cost)
        slot: int, t0_ns: int, t1_ns: int, value: float, step: int, span: int, parent: int,
        thread: int, kind: int, name: int,
    ) -> None:  # fmt: skip
        seq = take()
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

    return end


class InflightWriter:
    """Open spans, one slot each; a free slot is a list pop, so threads need no lock.

    ``enter(t0_ns, step, span, parent, thread, kind, name)`` returns the slot to ``leave``, 0 when
    all slots are taken. Both are closures: that is a third faster than methods.
    """

    def __init__(self, buffer: mmap | bytearray, offset: int, num_slots: int) -> None:
        self.free = [offset + i * RECORD_BYTES for i in reversed(range(num_slots))]
        self.enter, self.leave = _make_inflight(buffer, self.free)


def _make_inflight(
    buffer: mmap | bytearray, free: list[int]
) -> tuple[Callable[[int, int, int, int, int, int, int], int], Callable[[int], None]]:
    pack_into, clear, pop, push = RECORD.pack_into, WORD.pack_into, free.pop, free.append

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
    """The spans that are open now; half-written slots are left out."""
    size = num_slots * RECORD_BYTES
    tails, bodies, heads = read(offset, size), read(offset, size), read(offset, size)
    size = min(len(tails), len(bodies), len(heads)) // RECORD_BYTES * RECORD_BYTES
    marks = zip(_tails(tails[:size]), _heads(heads[:size]), strict=True)
    taken = [(slot, head) for slot, (tail, head) in enumerate(marks) if head and head == tail]
    rows = [(RECORD.unpack_from(bodies, slot * RECORD_BYTES), head) for slot, head in taken]
    return [row for row, head in rows if head == row[0] == row[5]]


def open_slots(table: bytes) -> list[Record]:
    """The same for the process that writes the table, which cannot catch itself half-way."""
    taken = [slot for slot, head in enumerate(_heads(table)) if head]
    return [RECORD.unpack_from(table, slot * RECORD_BYTES) for slot in taken]


class RingReader:
    """Follows one ring. ``num_read + num_lost + num_pending`` equals the newest number seen."""

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
        self._scout = (
            RingReader(read, offset, num_records, weakly_ordered=False) if weakly_ordered else None
        )
        self._num_quiet = 0
        self._first_chunk = _FIRST_CHUNK
        self.num_read = 0
        self.num_lost = 0

    @property
    def position(self) -> int:
        """Number of the newest record that was read, or given up; 0 before the first."""
        return self._next - 1

    @property
    def num_pending(self) -> int:
        """Numbers taken by a writer that has not finished its record."""
        return len(self._holes)

    def seems_empty(self) -> bool:
        """Whether nothing follows the newest record; a record behind a gap is not looked for."""
        at = self._offset + (self._next & (self._num_records - 1)) * RECORD_BYTES
        head = self._read(at, WORD.size)
        return not self._holes and len(head) == WORD.size and WORD.unpack(head)[0] < self._next

    def poll(self, limit: int = 1 << 16) -> bytearray:
        """Records since the last poll, about ``limit`` at most, oldest first but for late ones.

        Whole ones, packed: a reader that needs few fields of most of them saves half the time.
        """
        until = self._scout._next if self._scout else None  # noqa: SLF001 (its own twin)
        records = self._fill_holes() if self._holes else bytearray()
        chunk, laps = self._first_chunk, 0
        while len(records) < limit * RECORD_BYTES:
            before = self._next
            whole, lapped = self._take(chunk, until, laps, records)
            laps += lapped
            if self._next == before or not (whole or lapped) or laps > _MAX_LAPS:
                break
            chunk = min(chunk * 2, _LARGEST_CHUNK)
        if self._scout:
            self._scout.poll(limit)
        if not records:
            self._num_quiet += 1
            if self._num_quiet % _LOOK_WIDE_EVERY == 0:
                self._take(self._num_records, until, 0, records)
        num_records = len(records) // RECORD_BYTES
        self.num_read += num_records
        # next time about as many as now, and a few more to see the end
        self._first_chunk = min(num_records + _FIRST_CHUNK, _LARGEST_CHUNK)
        return records

    def drain(self) -> bytearray:
        """The writer is gone: everything that is left; what is unfinished will never come."""
        self._scout = None
        records = self.poll(self._num_records * 2)
        rest = bytearray()
        self._take(self._num_records, None, 0, rest)
        self.num_read += len(rest) // RECORD_BYTES
        records += rest
        self.num_lost += len(self._holes)
        self._holes.clear()
        return records

    def _take(self, chunk: int, until: int | None, laps: int, out: bytearray) -> tuple[bool, bool]:
        """Read one stretch: (every record of it was there, the writer had overtaken us)."""
        first = self._next
        at = first & (self._num_records - 1)
        count = min(chunk, self._num_records)
        if until is not None:
            count = min(count, until - first)
        if count <= 0:
            return False, False
        tails, bodies, heads = self._copy(at, count)
        num_new = max(heads, default=0) - first + 1
        expected = list(range(first, first + len(heads)))
        if (
            0 <= num_new <= len(heads)
            and tails[:num_new] == heads[:num_new] == expected[:num_new]
            and max(tails, default=0) < first + num_new
            and not self._unsettled()
        ):
            out += bodies[: num_new * RECORD_BYTES]
            self._next += num_new
            return num_new == count, False
        if self._newest(at, tails, heads) >= first + self._num_records:
            self._skip_overwritten(margin=laps and self._num_records // 8)
            return False, True
        return self._take_partly(expected, tails, bodies, heads, out), False

    def _newest(self, at: int, tails: list[int], heads: list[int]) -> int:
        """Largest number that is whole and in the slot it belongs to: corruption leads nowhere."""
        mask = self._num_records - 1
        rows = enumerate(zip(tails, heads, strict=True), start=at)
        highest = self._next + _FARTHEST
        return max(
            (h for i, (t, h) in rows if h == t < highest and h & mask == i & mask), default=0
        )

    def _take_partly(
        self, expected: list[int], tails: list[int], bodies: bytes, heads: list[int], out: bytearray
    ) -> bool:
        new = self._unsettled()
        rows = zip(expected, tails, heads, strict=True)
        good = [e == t == h and e not in new for e, t, h in rows]
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
        """To the oldest record that is left; a margin where the writer overtakes us repeatedly."""
        tails, _, heads = self._copy(0, self._num_records)
        oldest = self._newest(0, tails, heads) - self._num_records + 1 + margin
        self.num_lost += max(0, oldest - self._next)
        self._next = max(oldest, self._next)

    def _fill_holes(self) -> bytearray:
        found = bytearray()
        for seq in list(self._holes):
            if seq in self._unsettled():
                continue
            tails, bodies, heads = self._copy(seq & (self._num_records - 1), 1)
            if tails == heads == [seq]:
                found += bodies
            elif heads and heads[0] <= seq and self._holes[seq] < _HOLE_POLLS:
                self._holes[seq] += 1
                continue
            else:
                self.num_lost += 1
            del self._holes[seq]
        return found

    def _unsettled(self) -> dict[int, int]:
        """Records that were not there at the last poll, on a weakly ordered processor."""
        return self._scout._holes if self._scout else {}  # noqa: SLF001 (its own twin)

    def _copy(self, at: int, count: int) -> tuple[list[int], bytes, list[int]]:
        first, bodies, last = (self._read_stretch(at, count) for _ in range(3))
        size = min(len(first), len(bodies), len(last)) // RECORD_BYTES * RECORD_BYTES
        return _tails(first[:size]), bodies[:size], _heads(last[:size])

    def _read_stretch(self, at: int, count: int) -> bytes:
        """``count`` slots from slot ``at`` on, round the end of the ring if need be."""
        ahead = min(count, self._num_records - at)
        data = self._read(self._offset + at * RECORD_BYTES, ahead * RECORD_BYTES)
        if ahead == count or len(data) < ahead * RECORD_BYTES:
            return data
        return data + self._read(self._offset, (count - ahead) * RECORD_BYTES)


def _tails(data: bytes) -> list[int]:
    return memoryview(data).cast("Q")[7::8].tolist()


def _heads(data: bytes) -> list[int]:
    return memoryview(data).cast("Q")[::8].tolist()
