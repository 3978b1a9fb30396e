"""A ring over a bytearray."""

from __future__ import annotations

from dfx_agent.wire.records import RECORD, Record
from dfx_agent.wire.ring import RingReader, make_emit

U64, I64, U32, U16 = 2**64 - 1, 2**63, 2**32 - 1, 2**16 - 1


class Ring:
    """One ring over a bytearray; ``seq`` is the number that ``emit`` gives next."""

    def __init__(self, num_records: int = 64, *, weakly_ordered: bool = False) -> None:
        self.num_records = num_records
        self.buffer = bytearray(num_records * 64)
        self.reader = RingReader(self.read, 0, num_records, weakly_ordered=weakly_ordered)
        self._emit = make_emit(self.buffer, 0, num_records)
        self.written = 0

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.buffer[offset : offset + size])

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.written += 1
            n = self.written
            self._emit(n, 2 * n, n / 2, -n, n, n, n, n & U16, n & U16)

    def hole(self) -> int:
        """A number is taken and nothing of the record written yet; its sequence number."""
        self.write()
        slot = self.slot(self.written)
        self.buffer[slot] = bytes(64)
        return self.written

    def fill(self, seq: int, num_bytes: int = 64) -> bool:
        """Write the first bytes of a record; True when it is whole by that."""
        whole = packed(seq)
        self.buffer[self.slot(seq)] = whole[:num_bytes].ljust(64, b"\0")
        return bytes(self.buffer[self.slot(seq)]) == whole

    def slot(self, seq: int) -> slice:
        at = (seq & (self.num_records - 1)) * 64
        return slice(at, at + 64)


def packed(n: int) -> bytes:
    return RECORD.pack(n, n, 2 * n, n / 2, -n, n, n, n, n & U16, n & U16, n)


def is_intact(record: Record) -> bool:
    return RECORD.pack(*record) == packed(record[0])
