"""One collective over the ranks of a node: who waited for peers how long, and what was transfer.

A collective can begin when the last rank has arrived: what a rank was blocked before that it waited
for peers, the rest was transfer. A rank arrives when it calls; of asynchronous work only the later
wait blocks. Processes on one host share a monotonic clock, so arrivals compare directly. Source:
hooks.md section 3, estimator A, and B for where that does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from dfx_agent.agent.progress import DDP_GRADIENTS
from dfx_agent.snapshot import CollectiveTime

# Nobody leaves these before everybody has arrived; the root of a broadcast may.
_SYNCHRONISING = frozenset(
    {
        DDP_GRADIENTS,
        "all_gather",
        "all_gather_into_tensor",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "reduce_scatter",
        "reduce_scatter_tensor",
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
        "num_bytes",
        "num_collectives",
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
        self.transfers = transfers

    def rows(self, group: str, stage: str) -> list[CollectiveTime]:
        """By method; the row of "arrival" has the number of collectives of both."""
        times = self.peers_ns / 1e9, self.transfer_ns / 1e9, self.unmatched_ns / 1e9
        number = self.num_collectives, self.num_bytes
        rows = [CollectiveTime(group, stage, "arrival", *number, *times)]
        if self.peers_by_duration_ns or self.transfer_by_duration_ns:
            times = self.peers_by_duration_ns / 1e9, self.transfer_by_duration_ns / 1e9, 0.0
            rows.append(CollectiveTime(group, stage, "duration", 0, 0.0, *times))
        return rows


class Slot:
    """One collective under way. The masks have the bits of ranks that arrived, are through.

    ``blocked`` are (book, begin, end) of host time that is not booked yet.
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
        if self.operation in _SYNCHRONISING and any(end < last for _, _, end in blocked):
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


def _book_by_duration(blocked: Sequence[tuple[Book, int, int]]) -> None:
    durations = [end - begin for _, begin, end in blocked]
    waits = waits_by_duration(durations)
    for (book, begin, _), duration, wait in zip(blocked, durations, waits, strict=True):
        book.peers_by_duration_ns += wait
        book.transfer_by_duration_ns += duration - wait
        book.transfers.append((begin, duration - wait))
