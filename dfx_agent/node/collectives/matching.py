"""Collectives matched over the ranks of one run on this node, by role, group and sequence.

The same collective has the same number on every rank of its group; who belongs to a group is
learned from who reports it, so a group that spans nodes works with the ranks of this one. Time
whose peers are not known (no number, a single rank here, lost records, a death, collectives that
do not match) is "unmatched", never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dfx_agent.base.bounded_dict import BoundedDict
from dfx_agent.node.collectives.coverage import Coverage
from dfx_agent.node.collectives.waits import Book, DeviceSlot, Slot
from dfx_agent.node.process import Process
from dfx_agent.node.segments.records import Collective, DeviceTime
from dfx_agent.node.time.totals import CollectiveCounts
from dfx_agent.snapshot import CollectiveTime, GroupRow
from dfx_agent.wire.records import COLLECTIVES

_OTHER = "other"
_DEFAULT_GROUP = "0"  # the one of all ranks has its own rows, however many others came first
MAX_BOOKS = 1024
_MAX_TITLES = 64
_MAX_PENDING = 16384
_MAX_TRANSFERS = 8192
_SWEEP_EVERY_NS = 10**9
_NUM_READINGS_TO_LEARN = 2
_NOBODY_YET = -1  # a mask that no slot ever fills


class _Group:
    """The ranks of one process group on this node, as masks, and its collectives under way."""

    __slots__ = ("expected", "members", "num_readings", "slots")

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}
        self.members = self.num_readings = 0
        self.expected = _NOBODY_YET

    def book_if_complete(self, sequence: int, slot: Slot) -> None:
        """Book what is known when all have arrived, let the slot go when all are through.

        One rank alone is never all: those that it waits for are on other nodes.
        """
        arrived, expected = slot.arrived, self.expected
        if arrived & expected == expected and arrived & (arrived - 1):
            if slot.blocked:
                slot.book()
            if slot.through & expected == expected:
                del self.slots[sequence]

    def learn(self, living: int) -> None:
        """One more reading: who is ``living`` of its members must arrive.

        At first nobody knows them all: a rank may have been read before it had come so far.
        """
        self.num_readings += 1
        if self.num_readings < _NUM_READINGS_TO_LEARN or self.expected == self.members & living:
            return
        self.expected = self.members & living
        for sequence, slot in list(self.slots.items()):
            self.book_if_complete(sequence, slot)

    def forget(self, bit: int) -> None:
        """This rank is gone, and another one may come to have its bit."""
        slots = self.slots.items()
        self.give_up([n for n, slot in slots if (slot.arrived | slot.through) & bit])
        self.members &= ~bit
        if self.expected != _NOBODY_YET:
            self.expected &= ~bit

    def give_up(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.slots.pop(sequence).give_up()


class _Rank:
    """One rank of one role, over its restarts."""

    def __init__(self, process: Process, bit: int) -> None:
        self.process = process
        self.bit = bit
        self.groups: dict[str, tuple[_Group, Coverage]] = {}
        self.books: dict[tuple[str, str], Book] = {}
        self.books_by_parent: dict[tuple[str, int], Book] = {}  # within one reading
        self.transfers: list[tuple[int, int]] = []  # begin_ns, ns; as they come
        self._transfers: list[tuple[int, int]] = []  # the first to begin last

    def bound_transfers(self) -> None:
        """Merge neighbours: a step of that many collectives can bear it."""
        if len(self.transfers) + len(self._transfers) > _MAX_TRANSFERS:
            rows = sorted((*self.transfers, *self._transfers))
            pairs = zip(rows[::2], [*rows[1::2], (0, 0)], strict=False)
            self.transfers[:] = [(begin, one + other) for (begin, one), (_, other) in pairs]
            self._transfers.clear()

    def take_transfers(self, begin_ns: int, end_ns: int) -> int:
        """Nanoseconds of those begun in that time; what began before it is let go."""
        if self.transfers:
            self._transfers = sorted((*self._transfers, *self.transfers), reverse=True)
            self.transfers.clear()
        total = 0
        while self._transfers and self._transfers[-1][0] < end_ns:
            begin, ns = self._transfers.pop()
            total += ns if begin >= begin_ns else 0
        return total

    def forget_transfers(self) -> None:
        self.transfers.clear()
        self._transfers.clear()


class Collectives:
    """All collectives of one run on this node. ``add`` every process' reading, then ``settle``."""

    def __init__(self) -> None:
        self.num_misaligned = 0
        self._ranks: dict[tuple[str, str], _Rank] = {}
        self._dropped: BoundedDict[tuple[str, str], dict[tuple[str, str], Book]] = BoundedDict()
        self._groups: dict[tuple[str, str], _Group] = {}
        self._titles: set[str] = set()
        self._now_ns = 0
        self._next_sweep_ns = 0

    def add(self, process: Process) -> None:
        """The collectives of this process' last reading. The agent's hot path."""
        rank = self._rank_of(process)
        self._now_ns = now_ns = max(self._now_ns, process.last_event_ns or 0)
        records, device_times = process.collectives, process.device_times
        num_counted, num_device_counted = process.num_counted
        if num_counted or num_device_counted:
            counted = Book(rank.transfers)  # of an earlier agent's time: in no row
            self._add(rank, records[:num_counted], counted)
            self._add_device_times(rank, device_times[:num_device_counted], counted)
            records, device_times = records[num_counted:], device_times[num_device_counted:]
        self._add(rank, records, None)
        self._add_device_times(rank, device_times, None)
        for name, known in process.groups.items():
            _, coverage = rank.groups.get(name) or self._join(rank, name)
            coverage.report(known.num_enqueued, now_ns)
        rank.books_by_parent.clear()
        rank.bound_transfers()

    def books(self, process: Process) -> Iterator[CollectiveCounts]:
        """What ``rows`` counts, for the next agent."""
        rank = self._ranks.get(_key(process))
        for (group, stage), book in rank.books.items() if rank is not None else ():
            yield CollectiveCounts(group, stage, book.counts())

    def _add(self, rank: _Rank, records: Iterable[Collective], counted: Book | None) -> None:
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
        self, rank: _Rank, reported: Iterable[DeviceTime], counted: Book | None
    ) -> None:
        books = rank.books_by_parent
        for told in reported:
            key = told.group, told.parent
            self._match_device(rank, told, counted or books.get(key) or self._book(rank, *key))

    def let_go(self, process: Process) -> None:
        """It ended long ago: another rank may have its bit."""
        rank = self._ranks.pop(_key(process), None)
        if rank is None:
            return
        role = process.filed_as.role
        for (other, _), group in self._groups.items():
            if other == role:
                group.forget(rank.bit)
        self._groups = {key: group for key, group in self._groups.items() if group.members}
        if rank.books:
            rank.forget_transfers()
            self._dropped.put(_key(process), rank.books)

    def settle(self) -> None:
        """All ranks were read: learn who belongs to which group, let go what stays incomplete."""
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
        """Seconds of this rank by group and stage since it was first seen, restarts included."""
        rank = self._ranks.get(_key(process))
        if rank is None:
            return ()
        return tuple(row for key, book in sorted(rank.books.items()) for row in book.rows(*key))

    def group_rows(self, process: Process) -> tuple[GroupRow, ...]:
        """The groups of this rank as its guest counts them, the first 64 names of the run."""
        return tuple(
            GroupRow(
                name, known.num_enqueued, known.num_completed, num / advance if advance else None
            )
            for name, known in sorted(process.groups.items())
            if self._title(name) == name
            for num, advance in [self._counts(process, name)]
        )

    def coverage_ratio(self, process: Process) -> float | None:
        """Collectives recorded / counted by the groups, over all groups; None before any moved."""
        counts = [self._counts(process, name) for name in process.groups]
        advance = sum(advance for _, advance in counts)
        return sum(num for num, _ in counts) / advance if advance else None

    def take_transfer_ns(self, process: Process, begin_ns: int, end_ns: int) -> int:
        """Transfer of this rank in collectives begun in that time; what is before is let go."""
        rank = self._ranks.get(_key(process))
        return 0 if rank is None else rank.take_transfers(begin_ns, end_ns)

    def _match(
        self, group: _Group, bit: int, book: Book, sequence: int, record: Collective
    ) -> None:
        operation, _, _, begin, end, _, _, _, blocks, is_wait, failed = record
        slots = group.slots
        slot = slots.get(sequence)
        if slot is not None and slot.arrived & bit and _is_of_an_earlier_group(slot, record):
            group.give_up([sequence])
            slot = None
        if slot is None:
            slot = slots[sequence] = Slot(operation)
        slot.newest_ns = end
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

    def _match_device(self, rank: _Rank, told: DeviceTime, book: Book) -> None:
        """In a group of its own: only some collectives are told of, and by ranks that can."""
        title = f"{told.group}@device"  # a group's own name has no "@"
        group, _ = rank.groups.get(title) or self._join(rank, title)
        book.num_on_device += 1
        slot = group.slots.get(told.sequence)
        if slot is not None and slot.arrived & rank.bit:  # of an earlier group of that name
            group.give_up([told.sequence])
            slot = None
        if not isinstance(slot, DeviceSlot):
            slot = group.slots[told.sequence] = DeviceSlot(told.operation)
        slot.add(rank.bit, book, told, self._now_ns)
        group.book_if_complete(told.sequence, slot)

    def _rank_of(self, process: Process) -> _Rank:
        key = _key(process)
        rank = self._ranks.get(key)
        if rank is None:
            rank = self._ranks[key] = _Rank(process, self._free_bit())
            rank.books = self._dropped.pop(key) or {}
            for book in rank.books.values():
                book.transfers = rank.transfers
        elif rank.process is not process:
            rank.process = process
            self._restart(rank)
        if process.earlier_collectives:
            self._resume(rank, process)
        return rank

    def _resume(self, rank: _Rank, process: Process) -> None:
        """Go on from what another agent has counted of this rank."""
        rank.books = {
            (self._title(group), stage): Book.of(counts, rank.transfers)
            for group, stage, counts in process.earlier_collectives
        }
        process.earlier_collectives = ()

    def _free_bit(self) -> int:
        """The lowest that no rank has."""
        taken = sum(rank.bit for rank in self._ranks.values())
        return ~taken & (taken + 1)

    def _restart(self, rank: _Rank) -> None:
        """A rank began anew: numbers of the attempt before must not meet those of this one."""
        role, begin_ns = rank.process.filed_as.role, rank.process.follower.begin_ns
        for (other, _), group in self._groups.items():
            if other == role:
                group.give_up([n for n, slot in group.slots.items() if slot.newest_ns < begin_ns])
                group.members &= ~rank.bit
                group.num_readings, group.expected = 0, _NOBODY_YET
        rank.groups.clear()

    def _join(self, rank: _Rank, name: str) -> tuple[_Group, Coverage]:
        key = rank.process.filed_as.role, name
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        group.members |= rank.bit
        if group.expected != _NOBODY_YET:
            group.expected |= rank.bit
        seat = rank.groups[name] = group, Coverage()
        return seat

    def _book(self, rank: _Rank, name: str, parent: int) -> Book:
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
        seat = rank.groups.get(name) if rank else None
        if seat is None:
            return 0, 0
        is_in_flight = any(
            event.kind in COLLECTIVES and event.name.endswith(f"@{name}")
            for event in process.inflight
        )
        return seat[1].counts(process.groups[name].first_enqueued, is_in_flight=is_in_flight)

    def _sweep(self, *, is_over: bool) -> None:
        """Give up what has been blocked for too long.

        Work that was only issued costs nothing, and its rank may wait for it much later.
        """
        for group in self._groups.values():
            old = [
                sequence
                for sequence, slot in group.slots.items()
                if is_over or (slot.blocked and slot.newest_ns + slot.patience_ns < self._now_ns)
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
    return process.filed_as.role, process.label


def _is_of_an_earlier_group(slot: Slot, record: Collective) -> bool:
    """A rank that comes again: a new group of the same name counts from the beginning."""
    return not record.is_wait and record.begin_ns - slot.newest_ns > slot.patience_ns
