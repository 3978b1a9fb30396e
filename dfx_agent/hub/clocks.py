"""Clock offsets of nodes. Moves the timestamps of facts to the clocks of the local host."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dfx_agent.facts.flight import FlightRecord, RecordedGroup
from dfx_agent.facts.rank import Failure, RankFacts
from dfx_agent.facts.run import Reported
from dfx_agent.facts.scalars import ReportedScalars, UpdateCounts
from dfx_agent.facts.stacks import ProcessStacks
from dfx_agent.facts.steps import Step
from dfx_agent.snapshot import EngineFacts

_KEEP_NS = 300 * 10**9  # two clocks drift by less than 0.1 s in this time


class NodeClock:
    """The clock of one node. Call ``see`` for every document; add ``shift_ns`` to its timestamps.

    A document takes a while to arrive, and much longer after a network failure. The document with
    the shortest delay gives the best estimate of the offset between the two clocks.
    """

    def __init__(self) -> None:
        self.shift_ns = 0
        self._boot: str | None = None
        self._since_ns = 0
        self._latest = self._before = 0

    def see(self, boot: str, now_ns: int, received_ns: int) -> None:
        """Add a document: sent at ``now_ns`` of the node, received at local ``received_ns``."""
        apart_ns = received_ns - now_ns
        if boot != self._boot:
            self._boot, self._since_ns = boot, received_ns
            self._latest = self._before = apart_ns
        elif received_ns - self._since_ns >= _KEEP_NS:
            self._since_ns = received_ns
            self._before, self._latest = self._latest, apart_ns
        self._latest = min(self._latest, apart_ns)
        self.shift_ns = min(self._latest, self._before)


@dataclass(frozen=True, slots=True)
class Shift:
    """Offsets to add to monotonic times (ns) and to Unix times (seconds) of a node."""

    ns: int
    seconds: float

    def step(self, step: Step) -> Step:
        if not self.seconds:
            return step
        end = None if step.last_end_seconds is None else step.last_end_seconds + self.seconds
        return replace(step, begin_seconds=step.begin_seconds + self.seconds, last_end_seconds=end)

    def reported(self, event: Reported) -> Reported:
        return replace(event, time_seconds=event.time_seconds + self.seconds)

    def engine(self, engine: EngineFacts) -> EngineFacts:
        read = None if engine.read_seconds is None else engine.read_seconds + self.seconds
        return replace(engine, since_seconds=engine.since_seconds + self.seconds, read_seconds=read)

    def scalars(self, scalars: ReportedScalars) -> ReportedScalars:
        return replace(scalars, epoch_offset_ns=scalars.epoch_offset_ns + int(self.seconds * 1e9))

    def updates(self, counts: UpdateCounts) -> UpdateCounts:
        return counts._replace(event_seconds=counts.event_seconds + self.seconds)

    def rank(self, rank: RankFacts, flight: FlightRecord | None = None) -> RankFacts:
        """``flight``: its flight record, if that is already on the clocks of the local host."""
        ns = self.ns
        return replace(
            rank,
            now_ns=rank.now_ns + ns,
            now_seconds=rank.now_seconds + self.seconds,
            begin_ns=rank.begin_ns + ns,
            moved_ns=rank.moved_ns + ns,
            others_moved_ns=rank.others_moved_ns and rank.others_moved_ns + ns,
            group_moved_ns={group: at + ns for group, at in rank.group_moved_ns.items()},
            last_event_ns=self._at(rank.last_event_ns),
            asks_since_ns=self._at(rank.asks_since_ns),
            arrivals=tuple(a._replace(begin_ns=a.begin_ns + ns) for a in rank.arrivals),
            alive_ns=self._at(rank.alive_ns),
            gone_ns=self._at(rank.gone_ns),
            there_ns=self._at(rank.there_ns),
            failure=self._failure(rank.failure),
            thread_failure=self._failure(rank.thread_failure),
            opened_ns=tuple(at + ns for at in rank.opened_ns),
            stacks=self._stacks(rank.stacks),
            flight=flight or self.flight(rank.flight),
        )

    def _at(self, at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns + self.ns

    def _failure(self, failure: Failure | None) -> Failure | None:
        return failure and failure._replace(time_ns=failure.time_ns + self.ns)

    def _stacks(self, stacks: ProcessStacks | None) -> ProcessStacks | None:
        return None if stacks is None else replace(stacks, time_ns=self._at(stacks.time_ns))

    def flight(self, record: FlightRecord | None) -> FlightRecord | None:
        if record is None:
            return None
        groups = {key: self._group(group) for key, group in record.groups.items()}
        return replace(record, time_ns=record.time_ns + self.ns, groups=groups)

    def _group(self, group: RecordedGroup) -> RecordedGroup:
        apart_ns = int(self.seconds * 1e9)
        entries = tuple(e._replace(created_ns=e.created_ns + apart_ns) for e in group.entries)
        return replace(group, entries=entries)


OWN_CLOCKS = Shift(0, 0.0)
