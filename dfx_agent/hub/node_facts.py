"""Merges the documents of one node on one run: latest values, and complete growing lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dfx_agent.facts.bounds import MAX_PROCESSES, MAX_ROLES
from dfx_agent.facts.flight import FlightRecord
from dfx_agent.facts.layout import NO_LAYOUT, Layout
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.memory import DeviceUse, MemoryFacts, Samples
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.seat import ProcessId, Seat
from dfx_agent.hub.clocks import NodeClock, Shift
from dfx_agent.snapshot import EngineFacts

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
        self.unjudged: dict[tuple[str, str], RankFacts] = {}
        self._totals: dict[ProcessId, RankTotals] = {}
        self.engines: tuple[EngineFacts, ...] = ()
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

    def totals_of(self, process: ProcessId) -> RankTotals | None:
        """Totals of a process in its last report of them; None before the first."""
        return self._totals.get(process)

    def shown_rank(self, place: tuple[str, str]) -> RankFacts | None:
        """Facts of a rank, judged or not, on the clocks of the node."""
        return self.unjudged.get(place) or self.ranks.get(place)

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
        self._take_totals(facts)
        self.engines = self.engines if facts.engines is None else facts.engines
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
        cached = self._flights.get(place)
        if cached is None or cached[0] is not rank.flight or cached[1] != shift:
            cached = self._flights[place] = rank.flight, shift, shift.flight(rank.flight)
        return shift.rank(rank, cached[2])

    def _take_layouts(self, facts: RunFacts) -> None:
        """Update layouts; a layout that is not in the document stays."""
        reported = {role.role: role.layout for role in facts.steps if role.layout != NO_LAYOUT}
        self.layouts = reported if facts.is_full else {**self.layouts, **reported}

    def _take_seats(self, facts: RunFacts) -> None:
        before = {} if facts.is_full else self._seats
        reported = {seat.id: seat for seat in facts.seats}
        self._seats = {key: s for key, s in {**before, **reported}.items() if key not in facts.left}

    def _take_ranks(self, facts: RunFacts) -> None:
        ranks_by_key = {}
        for role, ranks in facts.ranks.items():
            for reported in ranks:
                before = None if facts.is_full else self.ranks.get((role, reported.label))
                now = facts.now_ns, facts.now_seconds
                if reported.begin_ns:
                    rank = replace(reported, now_ns=facts.now_ns, now_seconds=facts.now_seconds)
                    ranks_by_key[role, reported.label] = rank
                elif before is not None and before.pid == reported.pid:
                    ranks_by_key[role, reported.label] = _grown(before, reported, now)
        self.ranks = ranks_by_key
        self.unjudged = {
            (role, rank.label): replace(rank, now_ns=facts.now_ns, now_seconds=facts.now_seconds)
            for role, ranks in facts.unjudged.items()
            for rank in ranks
        }

    def _take_totals(self, facts: RunFacts) -> None:
        before = {} if facts.is_full else self._totals
        reported = {totals.process: totals for totals in facts.totals}
        self._totals = {p: t for p, t in {**before, **reported}.items() if p in self._seats}

    def _take_memory(self, facts: RunFacts) -> None:
        before = {} if facts.is_full else self.memory
        reported = {m.process: _with_samples(before.get(m.process), m) for m in facts.memory}
        living = {seat.id for seat in self.seats if seat.is_living}
        self.memory = {p: m for p, m in {**before, **reported}.items() if p in living}


def _grown(before: RankFacts, reported: RankFacts, now: tuple[int, float]) -> RankFacts:
    """The new facts with the earlier durations; stacks stay until the rank moves again."""
    stands = before.moved_ns == reported.moved_ns
    operations = before.operations
    if reported.operations:
        operations = dict(list({**operations, **reported.operations}.items())[-_KEEP_OPERATIONS:])
    return replace(
        reported,
        now_ns=now[0],
        now_seconds=now[1],
        begin_ns=before.begin_ns,
        parent_pid=before.parent_pid,
        world_size=before.world_size,
        seconds_before_guest=before.seconds_before_guest,
        # as many steps as the node itself uses
        step_durations=_extended(before.step_durations, reported.step_durations)[
            -reported.num_steps :
        ],
        stage_durations=_extended_by_name(before.stage_durations, reported.stage_durations),
        collective_durations=_extended_by_name(
            before.collective_durations, reported.collective_durations
        ),
        operations=operations,
        stacks=reported.stacks or (before.stacks if stands else None),
        flight=reported.flight or (before.flight if stands else None),
    )


def _extended(before: tuple[int, ...], added: tuple[int, ...]) -> tuple[int, ...]:
    return (*before, *added)[-_KEEP_DURATIONS:] if added else before


def _extended_by_name(
    before: Mapping[str, tuple[int, ...]], added: Mapping[str, tuple[int, ...]]
) -> Mapping[str, tuple[int, ...]]:
    if not added:
        return before
    return {**before, **{name: _extended(before.get(name, ()), new) for name, new in added.items()}}


def _with_samples(before: MemoryFacts | None, reported: MemoryFacts) -> MemoryFacts:
    if before is None:
        return reported
    sparse = map(
        _joined, _padded(before.sparse_samples, reported.sparse_samples), reported.sparse_samples
    )
    device_by_name = {device.device: device for device in before.devices}
    return replace(
        reported,
        samples=_joined(before.samples, reported.samples),
        sparse_samples=tuple(sparse),
        devices=tuple(
            _with_gaps(device_by_name.get(device.device), device) for device in reported.devices
        ),
    )


def _padded(before: tuple[Samples, ...], reported: tuple[Samples, ...]) -> Iterable[Samples]:
    return (*before, *((),) * (len(reported) - len(before)))


def _with_gaps(before: DeviceUse | None, reported: DeviceUse) -> DeviceUse:
    if before is None:
        return reported
    return replace(
        reported,
        unused_samples=_joined(before.unused_samples, reported.unused_samples),
        allocated_samples=_joined(before.allocated_samples, reported.allocated_samples),
    )


def _joined(before: Samples, added: Samples) -> Samples:
    return (*before, *added)[-_KEEP_SAMPLES:]
