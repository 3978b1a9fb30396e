"""What is known of one rank at one instant, and what it waits for its peers in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.facts.exit_status import ExitStatus
from dfx_agent.facts.flight import FlightRecord
from dfx_agent.facts.pairs import Pairs
from dfx_agent.facts.stacks import ProcessStacks
from dfx_agent.snapshot import RankState, TimeSplit
from dfx_agent.wire.failure import Failure as Failure  # noqa: PLC0414 (for readers of facts)
from dfx_agent.wire.records import DATA_LOADER_WAIT, DDP_GRADIENTS

SEND, RECEIVE = "send", "recv"
IDLE = "idle"


class Arrival(NamedTuple):
    """A rank waits for its peers.

    ``sequence`` is None where nobody numbers them, ``operation`` is "" where the host does not wait
    itself: it has issued this number and is quiet. ``peer`` is the one rank of the job that a send
    or receive waits for, where it names one.
    """

    operation: str
    group: str
    sequence: int | None
    begin_ns: int
    peer: int | None = None

    @property
    def call(self) -> str:
        """As a headline says it, without numbers: "all_reduce", "all_gather of group tp"."""
        if self.peer is not None:
            return str(self)
        group = "" if self.group in {"", "0"} else f" of group {self.group}"
        return f"{self.operation or 'a collective'}{group}"

    def __str__(self) -> str:
        if self.peer is not None:
            way = "to" if self.operation == SEND else "from"
            return f"{self.operation} {way} rank {self.peer}"
        number = "" if self.sequence is None else f" #{self.sequence}"
        group = f"@{self.group}" if self.group else ""
        return f"{self.operation or 'collective'}{group}{number}"


class Joining(NamedTuple):
    """A main thread that has been waiting for a thread of its own to end.

    ``asks_per_second``: how often that one has woken up meanwhile.
    """

    thread: str
    seconds: float
    asks_per_second: float


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankFacts:
    """One rank as of ``now_ns``; all ``*_ns`` are on its host's monotonic clock.

    ``rank``: its number in the job, negative where that is not known. ``moved_ns``: when it last
    did anything that shows, in a thread that trains; ``others_moved_ns``: in others, 0 for never.
    ``group_moved_ns``: when it last took part in a collective of each group. ``num_still``:
    readings in a row in which it had not. ``reached``: newest number of each group that it took
    part in. ``stage_durations`` and ``collective_durations`` ("operation@group") are the newest
    64, in nanoseconds.
    ``longest_gap_seconds``: quiet outside stages, or waiting, at most in the last hour.
    ``alive_ns``: newest instant at which it is known to have gone on; ``gone_ns``: when it was
    missed, its process gone or its segment closed. ``is_ending``: its segment is closed and its
    process was still there, the last time at ``there_ns``. ``processor_share``: what it got of a
    processor while it computed, since it last moved; 1 where it did not compute. ``stacks`` and
    ``flight`` were written since it last moved. ``opened_ns``: begins of ``open_spans``. ``node``:
    where it runs, "" where all of the job do. ``told_step``: the step that it said it is in, by its
    newest record. ``totals``: where its time went since it began, told of who makes samples alone;
    ``queue_depth``: as it told last, by queue.
    """

    label: str
    rank: int = -1
    pid: int = 0
    parent_pid: int | None = None
    attempt: int = 0
    world_size: int = 1
    state: RankState = "live"
    now_ns: int = 0
    now_seconds: float = 0.0
    begin_ns: int = 0
    moved_ns: int = 0
    others_moved_ns: int = 0
    group_moved_ns: Mapping[str, int] = field(default_factory=dict)
    last_event_ns: int | None = None
    seconds_before_guest: float = 0.0
    step: int | None = None
    last_step: int | None = None
    num_steps: int = 0
    step_durations: tuple[int, ...] = ()
    stages: tuple[str, ...] = ()
    open_spans: tuple[str, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    is_blocked: bool = False
    asks_since_ns: int | None = None
    num_still: int = 0
    has_groups: bool = False
    reached: Mapping[str, int] = field(default_factory=dict)
    operations: Pairs[tuple[str, int], str] = field(default_factory=dict)
    stage_durations: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    collective_durations: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    longest_gap_seconds: float = 0.0
    alive_ns: int | None = None
    gone_ns: int | None = None
    there_ns: int | None = None
    is_ending: bool = False
    is_outlived: bool | None = None
    exit_status: ExitStatus | None = None
    was_oom_killed: bool = False
    is_stopped: bool = False
    stopped_seconds: float | None = None
    """Since it was first seen stopped; None where it may have been since it last moved."""
    is_ray_worker: bool = False
    """Whether Ray runs this process: an actor, or a worker for tasks."""
    was_ended_by_ray: bool = False
    """Whether its log says that Ray ended it on purpose: ``ray.kill``, or its owner has ended."""
    is_idle: bool = False
    is_at_work: bool = False
    processor_share: float = 1.0
    stacks: ProcessStacks | None = None
    flight: FlightRecord | None = None
    joining: Joining | None = None
    opened_ns: tuple[int, ...] = ()
    node: str = ""
    step_seconds: float | None = None
    """How long the step that it is in has lasted; None before the first one."""
    told_step: int | None = None
    num_records: int = 0
    totals: TimeSplit | None = None
    queue_depth: Mapping[str, float] = field(default_factory=dict)
    failure: Failure | None = None
    """The exception that ended its process, where the guest saw it."""
    thread_failure: Failure | None = None
    """The first exception that ended another thread of it."""

    @property
    def is_living(self) -> bool:
        """Whether it may still go on: nobody has seen it end."""
        return self.state in {"live", "unknown"}

    @property
    def stage(self) -> str:
        """The stage that began last."""
        return self.stages[-1] if self.stages else IDLE

    @property
    def newest_step(self) -> int | None:
        """The step it is in; of one that closed its segment the last one."""
        return self.last_step if self.step is None else self.step

    @property
    def place(self) -> str:
        """As people read it: "in rollout", "waiting in queue", or "outside all stages"."""
        if self.stages:
            return f"in {self.stages[-1]}"
        waits = [name for name in self.open_spans if "@" not in name]  # a collective has a group
        if waits[-1:] == [DATA_LOADER_WAIT]:
            return "waiting for its data loader"
        return f"waiting in {waits[-1]}" if waits else "outside all stages"

    @property
    def quiet_seconds(self) -> float:
        """Since it last moved."""
        return (self.now_ns - self.moved_ns) / 1e9

    @property
    def ending_seconds(self) -> float:
        """Since it closed its segment; 0 where its process is not seen to be there still."""
        return (self.now_ns - (self.gone_ns or self.now_ns)) / 1e9 if self.is_ending else 0.0

    @property
    def idle_seconds(self) -> float:
        """The same, and by torch's flight recorder for the time before the guest came."""
        record = self.flight if self.moved_ns == self.begin_ns else None
        groups = record.groups.values() if record else ()
        newest_ns = max((e.created_ns for g in groups for e in g.entries[:1]), default=None)
        if newest_ns is None:
            return self.quiet_seconds
        return max(self.now_seconds - newest_ns / 1e9, self.quiet_seconds)

    def epoch_seconds(self, at_ns: int) -> float:
        """Unix time of an instant of its host's monotonic clock."""
        return self.now_seconds - (self.now_ns - at_ns) / 1e9

    def operation(self, group: str, sequence: int) -> str | None:
        """What it called number ``sequence`` of this group; None when that is not known."""
        return self.operations.get((group, sequence))

    def has_arrived(self, waiter: Waiter) -> bool:
        """Whether it takes or took part in what somebody else waits in."""
        arrival = waiter.arrival
        if arrival.peer is not None:
            other_end = RECEIVE if arrival.operation == SEND else SEND
            return any(
                (a.operation, a.group) == (other_end, arrival.group)
                and a.peer in {waiter.rank.rank, None}
                for a in self.arrivals
            )
        if arrival.sequence is None:
            return bool(self.arrivals)
        if arrival.operation == DDP_GRADIENTS and any(
            (a.operation, a.group) == (DDP_GRADIENTS, arrival.group) for a in self.arrivals
        ):
            return True  # its buckets are numbered as they go: a number apart is the same backward
        return self.reached.get(arrival.group, -1) >= arrival.sequence


class Waiter(NamedTuple):
    """A rank and what it waits in."""

    rank: RankFacts
    arrival: Arrival
