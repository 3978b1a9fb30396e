"""Merges the documents of one node on one run: latest values, and complete growing lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dfx_agent.facts.bounds import MAX_PROCESSES, MAX_ROLES
from dfx_agent.facts.flight import FlightRecord
from dfx_agent.facts.layout import NOT_TOLD, Layout
from dfx_agent.facts.memory import DeviceUse, MemoryFacts, Samples
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.hub.clocks import NodeClock, Shift

_KEEP_DURATIONS, _KEEP_OPERATIONS, _KEEP_SAMPLES = 64, 256, 64


class NodeRun:
    """One run on one node. Call ``take`` with its documents in the order in which they arrive.

    ``is_behind``: documents are missing, so growing lists are not extended until the node sends
    all facts again. ``facts`` are the latest facts, on the clocks of the node.
    """

    def __init__(self, node: str, clock: NodeClock, facts: RunFacts) -> None:
        self.node = node
        self.facts = facts
        self.received_ns = 0
        self.has_left = False
        self.is_behind = True
        self.memory: dict[ProcessId, MemoryFacts] = {}
        self.ranks: dict[tuple[str, str], RankFacts] = {}
        self.layouts: dict[str, Layout] = {}
        self._seats: dict[ProcessId, Seat] = {}
        self._flights: dict[tuple[str, str], tuple[FlightRecord, Shift, FlightRecord | None]] = {}
        self._clock = clock
        self._number = 0
        self._agent = ""

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Processes of the run in the last report."""
        return tuple(self._seats.values())

    def memory_facts(self) -> Mapping[ProcessId, MemoryFacts]:
        """Memory of living processes."""
        return self.memory

    def attempt(self, process: ProcessId) -> int:
        """How often the rank of this process was restarted before; 0 for a removed process."""
        seat = self._seats.get(process)
        return 0 if seat is None else seat.attempt

    @property
    def as_of_ns(self) -> int:
        """Time of the latest facts, on the clock of the local host."""
        return self.facts.now_ns + self._clock.shift_ns

    def silent_seconds(self, now_ns: int) -> float:
        """Seconds since the last report."""
        return max(0, now_ns - self.received_ns) / 1e9

    def take(self, facts: RunFacts, received_ns: int) -> bool:
        """Add a document. True if its growing lists continue those of the previous document."""
        is_next = facts.agent == self._agent and facts.number == self._number + 1
        if facts.agent == self._agent and facts.number <= self._number:
            return False  # a repeated document
        self._check_bounds(facts)
        self._agent, self._number = facts.agent, facts.number
        self.is_behind = not facts.is_full and (self.is_behind or not is_next)
        self._take_layouts(facts)
        self.facts, self.received_ns, self.has_left = facts, received_ns, facts.is_last
        self._take_seats(facts)
        self._take_ranks(facts)
        self._take_memory(facts)
        return not self.is_behind

    def _check_bounds(self, facts: RunFacts) -> None:
        """Check the total of several documents. Raises: ValueError with a one-line message."""
        before = () if facts.is_full else (*self._seats.values(),)
        processes = {seat.id for seat in (*before, *facts.seats)}.difference(facts.left)
        if len(processes) > MAX_PROCESSES:
            raise ValueError(f"more than {MAX_PROCESSES:,} processes of one run on one node")
        layouts = set() if facts.is_full else self.layouts.keys()
        roles = {process.role for process in processes} | layouts | facts.ranks.keys()
        if len(roles | {steps.role for steps in facts.steps}) > MAX_ROLES:
            raise ValueError(f"more than {MAX_ROLES} roles of one run on one node")

    def shift(self, here_seconds: float, here_ns: int) -> Shift:
        """Shift to the local clocks, which show ``here_seconds`` at ``here_ns``."""
        at_seconds = here_seconds - (here_ns - self.as_of_ns) / 1e9
        return Shift(self._clock.shift_ns, round(at_seconds - self.facts.now_seconds, 3))

    def rank_on_local_clocks(self, place: tuple[str, str], shift: Shift) -> RankFacts:
        """One rank on the local clocks. A flight record is long, so its shifted copy is cached."""
        rank = self.ranks[place]
        if rank.flight is None:
            self._flights.pop(place, None)
            return shift.rank(rank)
        known = self._flights.get(place)
        if known is None or known[0] is not rank.flight or known[1] != shift:
            known = self._flights[place] = rank.flight, shift, shift.flight(rank.flight)
        return shift.rank(rank, known[2])

    def _take_layouts(self, facts: RunFacts) -> None:
        """Update layouts; a layout that is not in the document stays."""
        told = {role.role: role.layout for role in facts.steps if role.layout != NOT_TOLD}
        self.layouts = told if facts.is_full else {**self.layouts, **told}

    def _take_seats(self, facts: RunFacts) -> None:
        before = {} if facts.is_full else self._seats
        told = {seat.id: seat for seat in facts.seats}
        self._seats = {key: s for key, s in {**before, **told}.items() if key not in facts.left}

    def _take_ranks(self, facts: RunFacts) -> None:
        known = {}
        for role, ranks in facts.ranks.items():
            for told in ranks:
                before = None if facts.is_full else self.ranks.get((role, told.label))
                now = facts.now_ns, facts.now_seconds
                if told.begin_ns:
                    rank = replace(told, now_ns=facts.now_ns, now_seconds=facts.now_seconds)
                    known[role, told.label] = rank
                elif before is not None and before.pid == told.pid:
                    known[role, told.label] = _grown(before, told, now)
        self.ranks = known

    def _take_memory(self, facts: RunFacts) -> None:
        before = {} if facts.is_full else self.memory
        told = {m.process: _with_samples(before.get(m.process), m) for m in facts.memory}
        living = {seat.id for seat in self.seats if seat.is_living}
        self.memory = {p: m for p, m in {**before, **told}.items() if p in living}


def _grown(before: RankFacts, told: RankFacts, now: tuple[int, float]) -> RankFacts:
    """The new facts with the earlier durations; stacks stay until the rank moves again."""
    stands = before.moved_ns == told.moved_ns
    operations = before.operations
    if told.operations:
        operations = dict(list({**operations, **told.operations}.items())[-_KEEP_OPERATIONS:])
    return replace(
        told,
        now_ns=now[0],
        now_seconds=now[1],
        begin_ns=before.begin_ns,
        parent_pid=before.parent_pid,
        world_size=before.world_size,
        seconds_before_guest=before.seconds_before_guest,
        # as many steps as the node itself uses
        step_durations=_newest(before.step_durations, told.step_durations)[-told.num_steps :],
        stage_durations=_newest_of(before.stage_durations, told.stage_durations),
        collective_durations=_newest_of(before.collective_durations, told.collective_durations),
        operations=operations,
        stacks=told.stacks or (before.stacks if stands else None),
        flight=told.flight or (before.flight if stands else None),
    )


def _newest(before: tuple[int, ...], told: tuple[int, ...]) -> tuple[int, ...]:
    return (*before, *told)[-_KEEP_DURATIONS:] if told else before


def _newest_of(
    before: Mapping[str, tuple[int, ...]], told: Mapping[str, tuple[int, ...]]
) -> Mapping[str, tuple[int, ...]]:
    if not told:
        return before
    return {**before, **{name: _newest(before.get(name, ()), new) for name, new in told.items()}}


def _with_samples(before: MemoryFacts | None, told: MemoryFacts) -> MemoryFacts:
    if before is None:
        return told
    sparse = map(_joined, _padded(before.sparse_samples, told.sparse_samples), told.sparse_samples)
    known = {device.device: device for device in before.devices}
    return replace(
        told,
        samples=_joined(before.samples, told.samples),
        sparse_samples=tuple(sparse),
        devices=tuple(_with_gaps(known.get(device.device), device) for device in told.devices),
    )


def _padded(before: tuple[Samples, ...], told: tuple[Samples, ...]) -> Iterable[Samples]:
    return (*before, *((),) * (len(told) - len(before)))


def _with_gaps(before: DeviceUse | None, told: DeviceUse) -> DeviceUse:
    if before is None:
        return told
    return replace(
        told,
        unused_samples=_joined(before.unused_samples, told.unused_samples),
        allocated_samples=_joined(before.allocated_samples, told.allocated_samples),
    )


def _joined(before: Samples, told: Samples) -> Samples:
    return (*before, *told)[-_KEEP_SAMPLES:]
