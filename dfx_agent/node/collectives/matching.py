"""Matches the collectives of all ranks of one run on this node, by role, group and sequence number.

A collective has the same sequence number on every rank of its group. The members of a group are
the ranks that report collectives in it, so for a group that spans nodes only local ranks count.
Time is "unmatched" if the peers are unknown: without a sequence number, with a single local rank,
after lost records or a crash, or if the collectives differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfx_agent.base.bounded_dict import BoundedDict
from dfx_agent.node.collectives.coverage import GroupCoverage
from dfx_agent.node.collectives.waits import Book, DeviceSlot, Slot
from dfx_agent.node.process import Process
from dfx_agent.node.segments.records import Collective, DeviceTime
from dfx_agent.node.time.totals import CollectiveCounts
from dfx_agent.snapshot import CollectiveTime, GroupRow
from dfx_agent.wire.records import COLLECTIVES

_OTHER = "other"
_DEFAULT_GROUP = "0"  # the group of all ranks; it always gets rows of its own
MAX_BOOKS = 1024
_MAX_TITLES = 64
_MAX_PENDING = 16384
_MAX_TRANSFERS = 8192
_SWEEP_EVERY_NS = 10**9
_NUM_READINGS_TO_LEARN = 2
_NOBODY_YET = -1  # a mask that no slot ever fills


class _Group:
    """The local ranks of one process group, as bit masks, and its pending collectives."""

    __slots__ = ("expected", "members", "num_readings", "slots")

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}
        self.members = self.num_readings = 0
        self.expected = _NOBODY_YET

    def book_if_complete(self, sequence: int, slot: Slot) -> None:
        """Account the collective when all ranks have arrived; drop it when all have left.

        A single local rank never completes a collective: its peers are on other nodes.
        """
        arrived, expected = slot.arrived, self.expected
        if arrived & expected == expected and arrived & (arrived - 1):
            if slot.blocked:
                slot.book()
            if slot.through & expected == expected:
                del self.slots[sequence]

    def learn(self, living: int) -> None:
        """Update the expected members after a poll; ``living``: mask of the live ranks.

        The first polls are skipped, because some ranks may not have reached the group yet.
        """
        self.num_readings += 1
        if self.num_readings < _NUM_READINGS_TO_LEARN or self.expected == self.members & living:
            return
        self.expected = self.members & living
        for sequence, slot in list(self.slots.items()):
            self.book_if_complete(sequence, slot)

    def remove_rank(self, bit: int) -> None:
        """Remove an exited rank; its bit may be assigned to another rank."""
        slots = self.slots.items()
        self.give_up([n for n, slot in slots if (slot.arrived | slot.through) & bit])
        self.members &= ~bit
        if self.expected != _NOBODY_YET:
            self.expected &= ~bit

    def give_up(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.slots.pop(sequence).give_up()


class _MatchedRank:
    """One rank of one role, including its restarts."""

    def __init__(self, process: Process, bit: int) -> None:
        self.process = process
        self.bit = bit
        self.groups: dict[str, tuple[_Group, GroupCoverage]] = {}
        self.books: dict[tuple[str, str], Book] = {}
        self.books_by_parent: dict[tuple[str, int], Book] = {}  # within one poll
        self.transfers: list[tuple[int, int]] = []  # begin_ns, ns; in order of arrival
        self._transfers: list[tuple[int, int]] = []  # the last to begin is first

    def bound_transfers(self) -> None:
        """Join neighbouring transfers when there are too many; the error is small then."""
        if len(self.transfers) + len(self._transfers) > _MAX_TRANSFERS:
            rows = sorted((*self.transfers, *self._transfers))
            pairs = zip(rows[::2], [*rows[1::2], (0, 0)], strict=False)
            self.transfers[:] = [(begin, one + other) for (begin, one), (_, other) in pairs]
            self._transfers.clear()

    def pop_transfers(self, begin_ns: int, end_ns: int) -> int:
        """Nanoseconds of the transfers that began in this interval; earlier ones are dropped."""
        if self.transfers:
            self._transfers = sorted((*self._transfers, *self.transfers), reverse=True)
            self.transfers.clear()
        total = 0
        while self._transfers and self._transfers[-1][0] < end_ns:
            begin, ns = self._transfers.pop()
            total += ns if begin >= begin_ns else 0
        return total

    def clear_transfers(self) -> None:
        self.transfers.clear()
        self._transfers.clear()


class Collectives:
    """All collectives of one run on this node; call ``add`` for every process, then ``settle``."""

    def __init__(self) -> None:
        self.num_misaligned = 0
        self._ranks: dict[tuple[str, str], _MatchedRank] = {}
        self._dropped: BoundedDict[tuple[str, str], dict[tuple[str, str], Book]] = BoundedDict()
        self._groups: dict[tuple[str, str], _Group] = {}
        self._titles: set[str] = set()
        self._now_ns = 0
        self._next_sweep_ns = 0

    def add(self, process: Process) -> None:
        """Add the collectives of the last poll of this process. This is the agent's hot path."""
        rank = self._rank_of(process)
        self._now_ns = now_ns = max(self._now_ns, process.last_event_ns or 0)
        records, device_times = process.collectives, process.device_times
        if not (records or device_times or process.groups):
            return
        num_counted, num_device_counted = process.num_counted
        if num_counted or num_device_counted:
            counted = Book(rank.transfers)  # counted by an earlier agent: not shown in any row
            self._add(rank, records[:num_counted], counted)
            self._add_device_times(rank, device_times[:num_device_counted], counted)
            records, device_times = records[num_counted:], device_times[num_device_counted:]
        self._add(rank, records, None)
        self._add_device_times(rank, device_times, None)
        for name, counts in process.groups.items():
            _, coverage = rank.groups.get(name) or self._join(rank, name)
            coverage.report(counts.num_enqueued, now_ns)
        rank.books_by_parent.clear()
        rank.bound_transfers()

    def books(self, process: Process) -> Iterator[CollectiveCounts]:
        """The counts of ``rows``, to be stored for the next agent."""
        rank = self._ranks.get(_key(process))
        for (group, stage), book in rank.books.items() if rank is not None else ():
            yield CollectiveCounts(group, stage, book.counts())

    def _add(self, rank: _MatchedRank, records: Iterable[Collective], counted: Book | None) -> None:
        groups, books, match, bit = rank.groups, rank.books_by_parent, self._match, rank.bit
        for record in records:
            operation, name, sequence, begin, end, size, _, parent, blocks, is_wait, failed = record
            group, coverage = groups.get(name) or self._join(rank, name)
            book = counted or books.get((name, parent)) or self._book(rank, name, parent)
            if not is_wait:
                book.num_collectives += 1
                book.num_bytes += size
                if sequence is not None:
                    coverage.record(operation, sequence)
            if (sequence is None or failed) and (blocks or is_wait):
                book.unmatched_ns += end - begin
            if sequence is not None:
                match(group, bit, book, sequence, record)

    def _add_device_times(
        self, rank: _MatchedRank, reported: Iterable[DeviceTime], counted: Book | None
    ) -> None:
        books = rank.books_by_parent
        for device_time in reported:
            key = device_time.group, device_time.parent
            book = counted or books.get(key) or self._book(rank, *key)
            self._match_device(rank, device_time, book)

    def remove_process(self, process: Process) -> None:
        """Drop an exited process; its bit may be assigned to another rank."""
        rank = self._ranks.pop(_key(process), None)
        if rank is None:
            return
        role = process.registered_as.role
        for (other, _), group in self._groups.items():
            if other == role:
                group.remove_rank(rank.bit)
        self._groups = {key: group for key, group in self._groups.items() if group.members}
        if rank.books:
            rank.clear_transfers()
            self._dropped.put(_key(process), rank.books)

    def settle(self) -> None:
        """Call when all ranks were polled: update group members, drop stale collectives."""
        living: dict[str, int] = {}
        for key, rank in self._ranks.items():
            if rank.process.is_living and _key(rank.process) == key:
                living[key[0]] = living.get(key[0], 0) | rank.bit
        for (role, _), group in self._groups.items():
            group.learn(living.get(role, 0))
        if self._now_ns >= self._next_sweep_ns or not living:
            self._next_sweep_ns = self._now_ns + _SWEEP_EVERY_NS
            self._sweep(is_over=not living)
        self._bound_pending()

    def rows(self, process: Process) -> tuple[CollectiveTime, ...]:
        """Seconds of this rank by group and stage since it was first seen, including restarts."""
        rank = self._ranks.get(_key(process))
        if rank is None:
            return ()
        return tuple(row for key, book in sorted(rank.books.items()) for row in book.rows(*key))

    def group_rows(self, process: Process) -> tuple[GroupRow, ...]:
        """Groups of this rank as its guest counts them; only the first 64 names of the run."""
        return tuple(
            GroupRow(
                name, counts.num_enqueued, counts.num_completed, num / advance if advance else None
            )
            for name, counts in sorted(process.groups.items())
            if self._title(name) == name
            for num, advance in [self._counts(process, name)]
        )

    def coverage_ratio(self, process: Process) -> float | None:
        """Recorded / counted collectives over all groups; None before any was counted."""
        counts = [self._counts(process, name) for name in process.groups]
        advance = sum(advance for _, advance in counts)
        return sum(num for num, _ in counts) / advance if advance else None

    def pop_transfer_ns(self, process: Process, begin_ns: int, end_ns: int) -> int:
        """Transfer time of collectives that began in this interval; earlier ones are dropped."""
        rank = self._ranks.get(_key(process))
        return 0 if rank is None else rank.pop_transfers(begin_ns, end_ns)

    def _match(
        self, group: _Group, bit: int, book: Book, sequence: int, record: Collective
    ) -> None:
        operation, _, _, begin, end, _, _, _, blocks, is_wait, failed = record
        slots = group.slots
        slot = slots.get(sequence)
        if slot is not None and slot.arrived & bit and _is_of_earlier_group(slot, record):
            group.give_up([sequence])
            slot = None
        if slot is None:
            slot = slots[sequence] = Slot(operation)
        slot.last_record_ns = end
        if not is_wait:
            if begin > slot.last_arrival_ns:  # noqa: PLR1730 (max() costs more)
                slot.last_arrival_ns = begin
            if operation != slot.operation and not slot.is_misaligned and not slot.arrived & bit:
                slot.is_misaligned = True
                self.num_misaligned += 1
            slot.arrived |= bit
        if blocks or is_wait:
            slot.through |= bit
            if not failed:
                slot.blocked.append((book, begin, end))
        if slot.arrived & group.expected == group.expected:
            group.book_if_complete(sequence, slot)

    def _match_device(self, rank: _MatchedRank, device_time: DeviceTime, book: Book) -> None:
        """Device times are matched in a group of their own: not every collective has one."""
        title = f"{device_time.group}@device"  # a group's own name has no "@"
        group, _ = rank.groups.get(title) or self._join(rank, title)
        book.num_on_device += 1
        slot = group.slots.get(device_time.sequence)
        if slot is not None and slot.arrived & rank.bit:  # from an earlier group of that name
            group.give_up([device_time.sequence])
            slot = None
        if not isinstance(slot, DeviceSlot):
            slot = group.slots[device_time.sequence] = DeviceSlot(device_time.operation)
        slot.add(rank.bit, book, device_time, self._now_ns)
        group.book_if_complete(device_time.sequence, slot)

    def _rank_of(self, process: Process) -> _MatchedRank:
        key = _key(process)
        rank = self._ranks.get(key)
        if rank is None:
            rank = self._ranks[key] = _MatchedRank(process, self._free_bit())
            rank.books = self._dropped.pop(key) or {}
            for book in rank.books.values():
                book.transfers = rank.transfers
        elif rank.process is not process:
            rank.process = process
            self._restart(rank)
        if process.earlier_collectives:
            self._resume(rank, process)
        return rank

    def _resume(self, rank: _MatchedRank, process: Process) -> None:
        """Continue the counts that an earlier agent stored for this rank."""
        rank.books = {
            (self._title(group), stage): Book.from_counts(counts, rank.transfers)
            for group, stage, counts in process.earlier_collectives
        }
        process.earlier_collectives = ()

    def _free_bit(self) -> int:
        """The lowest bit that no rank has."""
        used = sum(rank.bit for rank in self._ranks.values())
        return ~used & (used + 1)

    def _restart(self, rank: _MatchedRank) -> None:
        """After a restart: drop pending collectives of the earlier attempt."""
        role, begin_ns = rank.process.registered_as.role, rank.process.follower.begin_ns
        for (other, _), group in self._groups.items():
            if other == role:
                group.give_up(
                    [n for n, slot in group.slots.items() if slot.last_record_ns < begin_ns]
                )
                group.members &= ~rank.bit
                group.num_readings, group.expected = 0, _NOBODY_YET
        rank.groups.clear()

    def _join(self, rank: _MatchedRank, name: str) -> tuple[_Group, GroupCoverage]:
        key = rank.process.registered_as.role, name
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.members |= rank.bit
        if group.expected != _NOBODY_YET:
            group.expected |= rank.bit
        rank.groups[name] = group, GroupCoverage()
        return rank.groups[name]

    def _book(self, rank: _MatchedRank, name: str, parent: int) -> Book:
        key = self._title(name), rank.process.stage_of(parent)
        if key not in rank.books and len(rank.books) >= MAX_BOOKS - 1:
            key = _OTHER, ""
        book = rank.books.get(key)
        if book is None:
            book = rank.books[key] = Book(rank.transfers)
        rank.books_by_parent[name, parent] = book
        return book

    def _title(self, name: str) -> str:
        if name not in self._titles:
            if len(self._titles) >= _MAX_TITLES and name != _DEFAULT_GROUP:
                return _OTHER
            self._titles.add(name)
        return name

    def _counts(self, process: Process, name: str) -> tuple[int, int]:
        rank = self._ranks.get(_key(process))
        membership = rank.groups.get(name) if rank else None
        if membership is None:
            return 0, 0
        is_in_flight = any(
            event.kind in COLLECTIVES and event.name.endswith(f"@{name}")
            for event in process.inflight
        )
        _, coverage = membership
        return coverage.counts(process.groups[name].first_enqueued, is_in_flight=is_in_flight)

    def _sweep(self, *, is_over: bool) -> None:
        """Drop collectives that have blocked a rank for too long.

        Asynchronous work stays: it blocks nobody, and its rank may wait for it much later.
        """
        for group in self._groups.values():
            old = [
                sequence
                for sequence, slot in group.slots.items()
                if is_over
                or (slot.blocked and slot.last_record_ns + slot.patience_ns < self._now_ns)
            ]
            group.give_up(old)

    def _bound_pending(self) -> None:
        pending = sum(len(group.slots) for group in self._groups.values())
        while pending > _MAX_PENDING:
            group = max(self._groups.values(), key=lambda group: len(group.slots))
            oldest = list(group.slots)[: max(1, len(group.slots) // 4)]
            group.give_up(oldest)
            pending -= len(oldest)


def _key(process: Process) -> tuple[str, str]:
    return process.registered_as.role, process.label


def _is_of_earlier_group(slot: Slot, record: Collective) -> bool:
    """Whether the slot is left from an earlier group of this name, whose numbers began at 0 too."""
    return not record.is_wait and record.begin_ns - slot.last_record_ns > slot.patience_ns
