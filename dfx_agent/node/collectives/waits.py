"""One collective over the ranks of a node: who waited for peers how long, and what was transfer.

A collective can begin when the last rank has arrived: what a rank was blocked before that it waited
for peers, the rest was transfer. A rank arrives when it calls; of asynchronous work only the later
wait blocks. Processes on one host share a monotonic clock, so arrivals compare directly. Where they
do not, how long a collective took each rank says it: docs/concepts/waits-and-collectives.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from dfx_agent.node.segments.records import DeviceTime
from dfx_agent.snapshot import CollectiveTime
from dfx_agent.wire.records import DDP_GRADIENTS

# Nobody leaves these before everybody has arrived; the root of a broadcast may.
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
    """How long each rank waited for peers in one collective, from its durations alone.

    For arrivals that cannot be compared: clocks of several hosts, a container with a time namespace
    of its own, durations told by a device. The rank that was in it shortest is taken to have come
    last; what it took was transfer.
    """
    shortest = min(durations_ns, default=0)
    return [duration - shortest for duration in durations_ns]


class Book:
    """Nanoseconds of one rank in one group and stage. Counters: they only grow.

    ``transfers`` are (begin, transfer) of all books of the rank.
    """

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
        self.transfers = transfers

    def counts(self) -> tuple[float, ...]:
        """All of them in one order, for ``of``."""
        return tuple(getattr(self, name) for name in _COUNTS)

    @classmethod
    def of(cls, counts: Sequence[float], transfers: list[tuple[int, int]]) -> Book:
        """A book that goes on from what an earlier agent has counted."""
        book = cls(transfers)
        for name, count in zip(_COUNTS, counts, strict=True):
            setattr(book, name, count)
        return book

    def rows(self, group: str, stage: str) -> list[CollectiveTime]:
        """By method; the row of "arrival" has the number of collectives of it and "duration"."""
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
    """One collective under way. The masks have the bits of ranks that arrived, are through.

    ``blocked`` are (book, begin, end) of host time that is not booked yet. After ``patience_ns``
    without news, what is blocked is given up.
    """

    __slots__ = (
        "arrived",
        "blocked",
        "is_misaligned",
        "last_arrival_ns",
        "newest_ns",
        "operation",
        "through",
    )
    patience_ns = 10 * 10**9

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.arrived = self.through = 0
        self.last_arrival_ns = self.newest_ns = 0
        self.blocked: list[tuple[Book, int, int]] = []
        self.is_misaligned = False

    def book(self) -> None:
        """Everybody has arrived: tell waiting from transfer."""
        last, blocked = self.last_arrival_ns, self.blocked
        if self.is_misaligned:
            self.give_up()
            return
        self.blocked = []
        if self.operation in SYNCHRONISING and any(end < last for _, _, end in blocked):
            _book_by_duration(blocked)  # left before the last came: not the same clock
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
        """Who was waited for will not be known."""
        for book, begin, end in self.blocked:
            book.unmatched_ns += end - begin
        self.blocked = []


class DeviceSlot(Slot):
    """One collective under way; ``blocked`` are (book, stood, duration) of the ranks so far."""

    __slots__ = ()
    patience_ns = 600 * 10**9  # events are read in set_step: the ranks tell of it a step apart

    def add(self, bit: int, book: Book, told: DeviceTime, now_ns: int) -> None:
        self.newest_ns = now_ns
        self.arrived |= bit
        self.through |= bit
        self.is_misaligned |= told.operation != self.operation
        self.blocked.append((book, told.stood_ns, told.duration_ns))

    def book(self) -> None:
        """All have told: what one stood longer than the shortest was in it, peers were not there.

        A stream that came to the wait later stood for less, of the end alone: transfer first.
        """
        if self.is_misaligned or self.operation not in SYNCHRONISING:
            self.give_up()
            return
        blocked, self.blocked = self.blocked, []
        waits = waits_by_duration([duration for _, _, duration in blocked])
        for (book, stood, duration), wait in zip(blocked, waits, strict=True):
            transfer = min(stood, duration - wait)
            book.device_transfer_ns += transfer
            book.device_peers_ns += stood - transfer

    def give_up(self) -> None:
        for book, stood, _ in self.blocked:
            book.device_unmatched_ns += stood
        self.blocked = []


def _book_by_duration(blocked: Sequence[tuple[Book, int, int]]) -> None:
    durations = [end - begin for _, begin, end in blocked]
    waits = waits_by_duration(durations)
    for (book, begin, _), duration, wait in zip(blocked, durations, waits, strict=True):
        book.peers_by_duration_ns += wait
        book.transfer_by_duration_ns += duration - wait
        book.transfers.append((begin, duration - wait))
