"""Splits the time of one collective into waiting for peers and transfer, per rank of a node.

A collective can begin when the last rank has arrived. Before that a rank waits for peers, after it
data is transferred. A rank arrives when it calls the collective; of asynchronous work only the
later wait blocks. Processes on one host share a monotonic clock, so arrivals are comparable.
Without a common clock the durations are compared: docs/concepts/waits-and-collectives.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from dfx_agent.node.segments.records import DeviceTime
from dfx_agent.snapshot import CollectiveTime
from dfx_agent.wire.records import DDP_GRADIENTS

# No rank leaves these before all ranks have arrived; the root of a broadcast may.
SYNCHRONISING = frozenset(
    {
        DDP_GRADIENTS,
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
    }
)


def waits_by_duration(durations_ns: Sequence[int]) -> list[int]:
    """How long each rank waited for peers in one collective, computed from durations alone.

    For arrivals that are not comparable: clocks of several hosts, a container with its own time
    namespace, durations measured by a device. The rank with the shortest duration is assumed to
    have arrived last, and its duration is the transfer time.
    """
    shortest = min(durations_ns, default=0)
    return [duration - shortest for duration in durations_ns]


class Book:
    """Nanoseconds of one rank in one group and stage. All values are counters."""

    __slots__ = (
        "device_peers_ns",
        "device_transfer_ns",
        "device_unmatched_ns",
        "num_bytes",
        "num_collectives",
        "num_on_device",
        "peers_by_duration_ns",
        "peers_ns",
        "transfer_by_duration_ns",
        "transfer_ns",
        "transfers",
        "unmatched_ns",
    )

    def __init__(self, transfers: list[tuple[int, int]]) -> None:
        self.num_collectives = 0
        self.num_bytes = 0.0
        self.peers_ns = self.transfer_ns = self.unmatched_ns = 0
        self.peers_by_duration_ns = self.transfer_by_duration_ns = 0
        self.num_on_device = 0
        self.device_peers_ns = self.device_transfer_ns = self.device_unmatched_ns = 0
        self.transfers = transfers  # (begin, transfer) of all books of the rank

    def counts(self) -> tuple[float, ...]:
        """All counters, in the order that ``from_counts`` expects."""
        return tuple(getattr(self, name) for name in _COUNTS)

    @classmethod
    def from_counts(cls, counts: Sequence[float], transfers: list[tuple[int, int]]) -> Book:
        """A book that continues the counts of an earlier agent."""
        book = cls(transfers)
        for name, count in zip(_COUNTS, counts, strict=True):
            setattr(book, name, count)
        return book

    def rows(self, group: str, stage: str) -> list[CollectiveTime]:
        """One row per method. The row "arrival" also counts the collectives of "duration"."""
        times = self.peers_ns / 1e9, self.transfer_ns / 1e9, self.unmatched_ns / 1e9
        number = self.num_collectives, self.num_bytes
        rows = [CollectiveTime(group, stage, "arrival", *number, *times)]
        if self.peers_by_duration_ns or self.transfer_by_duration_ns:
            times = self.peers_by_duration_ns / 1e9, self.transfer_by_duration_ns / 1e9, 0.0
            rows.append(CollectiveTime(group, stage, "duration", 0, 0.0, *times))
        if self.num_on_device:
            peers, transfer = self.device_peers_ns / 1e9, self.device_transfer_ns / 1e9
            times = peers, transfer, self.device_unmatched_ns / 1e9
            rows.append(CollectiveTime(group, stage, "device", self.num_on_device, None, *times))
        return rows


_COUNTS = tuple(name for name in Book.__slots__ if name != "transfers")
NUM_COUNTS = len(_COUNTS)


class Slot:
    """One pending collective. ``arrived`` and ``through`` are bit masks of ranks."""

    __slots__ = (
        "arrived",
        "blocked",
        "is_misaligned",
        "last_arrival_ns",
        "last_record_ns",
        "operation",
        "through",
    )
    patience_ns = 10 * 10**9  # blocked time is dropped after this time without a new record

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.arrived = self.through = 0
        self.last_arrival_ns = self.last_record_ns = 0
        self.blocked: list[tuple[Book, int, int]] = []  # (book, begin, end), not accounted yet
        self.is_misaligned = False

    def book(self) -> None:
        """All ranks have arrived: split the blocked time into waiting and transfer."""
        last, blocked = self.last_arrival_ns, self.blocked
        if self.is_misaligned:
            self.give_up()
            return
        self.blocked = []
        if self.operation in SYNCHRONISING and any(end < last for _, _, end in blocked):
            _book_by_duration(blocked)  # a rank left before the last arrival: clocks differ
            return
        for book, begin, end in blocked:
            if last <= begin:
                book.transfer_ns += end - begin
                book.transfers.append((begin, end - begin))
            elif last < end:
                book.peers_ns += last - begin
                book.transfer_ns += end - last
                book.transfers.append((begin, end - last))
            else:
                book.peers_ns += end - begin

    def give_up(self) -> None:
        """Account the blocked time as unmatched, because the peers are unknown."""
        for book, begin, end in self.blocked:
            book.unmatched_ns += end - begin
        self.blocked = []


class DeviceSlot(Slot):
    """One pending collective on devices. ``blocked``: (book, stalled, duration) of the ranks."""

    __slots__ = ()
    patience_ns = 600 * 10**9  # events are read in set_step: ranks may report one step apart

    def add(self, bit: int, book: Book, device_time: DeviceTime, now_ns: int) -> None:
        self.last_record_ns = now_ns
        self.arrived |= bit
        self.through |= bit
        self.is_misaligned |= device_time.operation != self.operation
        self.blocked.append((book, device_time.stood_ns, device_time.duration_ns))

    def book(self) -> None:
        """All ranks have reported: the time beyond the shortest duration was waiting for peers.

        A stream that began to stall later only stalled for the end: transfer is subtracted first.
        """
        if self.is_misaligned or self.operation not in SYNCHRONISING:
            self.give_up()
            return
        blocked, self.blocked = self.blocked, []
        waits = waits_by_duration([duration for _, _, duration in blocked])
        for (book, stalled_ns, duration), wait in zip(blocked, waits, strict=True):
            transfer = min(stalled_ns, duration - wait)
            book.device_transfer_ns += transfer
            book.device_peers_ns += stalled_ns - transfer

    def give_up(self) -> None:
        for book, stalled_ns, _ in self.blocked:
            book.device_unmatched_ns += stalled_ns
        self.blocked = []


def _book_by_duration(blocked: Sequence[tuple[Book, int, int]]) -> None:
    durations = [end - begin for _, begin, end in blocked]
    waits = waits_by_duration(durations)
    for (book, begin, _), duration, wait in zip(blocked, durations, waits, strict=True):
        book.peers_by_duration_ns += wait
        book.transfer_by_duration_ns += duration - wait
        book.transfers.append((begin, duration - wait))
