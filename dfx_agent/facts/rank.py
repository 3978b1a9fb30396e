"""What is known about one rank at one instant, and in which calls it waits for its peers."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.facts.flight import FlightRecord
from dfx_agent.facts.stacks import ProcessStacks
from dfx_agent.snapshot import RankState
from dfx_agent.snapshot.document import Pairs
from dfx_agent.wire.failure import Failure as Failure  # noqa: PLC0414 (for readers of facts)
from dfx_agent.wire.records import DATA_LOADER_WAIT, DDP_GRADIENTS

_REQUESTS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_CODES_OF_REQUESTS = {128 + number for number in _REQUESTS}  # of shells and launchers


class ExitStatus(NamedTuple):
    """Either an exit code or the signal that killed the process."""

    code: int | None
    """0 to 255; None if a signal killed the process."""
    signal: int | None

    @classmethod
    def from_wait_status(cls, wait_status: int) -> ExitStatus:
        """Convert the status of wait(2)."""
        number = wait_status & 0x7F
        return cls(None, number) if number else cls(wait_status >> 8 & 0xFF, None)

    @property
    def is_success(self) -> bool:
        return self.code == 0

    @property
    def was_asked_for(self) -> bool:
        """Whether a launcher, a scheduler or a person asked the process to end."""
        return self.signal in _REQUESTS or self.code in _CODES_OF_REQUESTS

    def __str__(self) -> str:
        if self.signal is None:
            return f"ended with exit code {self.code}"
        with suppress(ValueError):
            return f"killed by signal {self.signal} ({signal.Signals(self.signal).name})"
        return f"killed by signal {self.signal}"


SEND, RECEIVE = "send", "recv"
IDLE = "idle"


class Arrival(NamedTuple):
    """A rank that waits for its peers in a collective, a send or a receive."""

    operation: str
    """"" if the host itself does not wait: it has issued the collective and is quiet."""
    group: str
    sequence: int | None
    """None if the calls have no numbers."""
    begin_ns: int
    peer: int | None = None
    """Rank that a send or receive waits for, if known."""

    @property
    def call(self) -> str:
        """Text for a headline, without numbers: "all_reduce", "all_gather of group tp"."""
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
    """A main thread that waits for another thread of its process to end."""

    thread: str
    seconds: float
    asks_per_second: float
    """How often the other thread has woken up in that time."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankFacts:
    """One rank as of ``now_ns``. All ``*_ns`` are on its host's monotonic clock."""

    label: str
    """Name of the rank, such as "3"."""
    rank: int = -1
    """Number in the job; negative if unknown."""
    pid: int = 0
    parent_pid: int | None = None
    attempt: int = 0
    world_size: int = 1
    state: RankState = "live"
    now_ns: int = 0
    now_seconds: float = 0.0
    begin_ns: int = 0
    moved_ns: int = 0
    """When a training thread last did anything visible."""
    others_moved_ns: int = 0
    """The same for other threads; 0 for never."""
    group_moved_ns: Mapping[str, int] = field(default_factory=dict)
    """When it last took part in a collective, by group."""
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
    """Consecutive polls in which it has not moved."""
    has_groups: bool = False
    reached: Mapping[str, int] = field(default_factory=dict)
    """Highest sequence number that it took part in, by group."""
    operations: Pairs[tuple[str, int], str] = field(default_factory=dict)
    """Operation by (group, sequence number)."""
    stage_durations: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The latest 64 durations by stage, in nanoseconds."""
    collective_durations: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The latest 64 durations by "operation@group", in nanoseconds."""
    longest_gap_seconds: float = 0.0
    """Longest quiet time outside stages, or in a wait, within the last hour."""
    alive_ns: int | None = None
    """Last time at which it was known to be running."""
    gone_ns: int | None = None
    """When its process was found missing or its segment closed."""
    there_ns: int | None = None
    """When its process was last seen, for a closed segment."""
    is_ending: bool = False
    """Whether its segment is closed while its process still exists."""
    is_outlived: bool | None = None
    exit_status: ExitStatus | None = None
    was_oom_killed: bool = False
    is_suspended: bool = False
    """Whether the kernel reports it as stopped (state T), and it has not moved since."""
    is_stopped: bool = False
    stopped_seconds: float | None = None
    """Time since it was first seen stopped; None if that may have been since it last moved."""
    is_ray_worker: bool = False
    """Whether Ray runs this process: an actor, or a worker for tasks."""
    was_ended_by_ray: bool = False
    """Whether Ray's log says that Ray ended it on purpose (``ray.kill``, or its owner ended)."""
    is_idle: bool = False
    is_at_work: bool = False
    processor_share: float = 1.0
    """Share of its runnable time on a CPU since it last moved; 1 if it was not runnable."""
    stacks: ProcessStacks | None = None
    """Written since it last moved."""
    flight: FlightRecord | None = None
    """Written since it last moved."""
    joining: Joining | None = None
    opened_ns: tuple[int, ...] = ()
    """Begin of each of the ``open_spans``."""
    node: str = ""
    """Its node; "" if the job has only one."""
    step_seconds: float | None = None
    """Duration of the current step so far; None before the first one."""
    reported_step: int | None = None
    """Step of its latest record."""
    queue_depth: Mapping[str, float] = field(default_factory=dict)
    """Last reported depth by queue."""
    failure: Failure | None = None
    """The exception that ended its process, if the guest saw it."""
    thread_failure: Failure | None = None
    """The first exception that ended another thread of it."""

    @property
    def is_living(self) -> bool:
        """Whether it may still run: no agent has seen it end."""
        return self.state in {"live", "unknown"}

    @property
    def stage(self) -> str:
        """The stage that began last."""
        return self.stages[-1] if self.stages else IDLE

    @property
    def latest_step(self) -> int | None:
        """The current step; the last one if the segment is closed."""
        return self.last_step if self.step is None else self.step

    @property
    def place(self) -> str:
        """Text for people: "in rollout", "waiting in queue", or "outside all stages"."""
        if self.stages:
            return f"in {self.stages[-1]}"
        waits = [name for name in self.open_spans if "@" not in name]  # a collective has a group
        if waits[-1:] == [DATA_LOADER_WAIT]:
            return "waiting for its data loader"
        return f"waiting in {waits[-1]}" if waits else "outside all stages"

    @property
    def quiet_seconds(self) -> float:
        """Seconds since it last moved."""
        return (self.now_ns - self.moved_ns) / 1e9

    @property
    def ending_seconds(self) -> float:
        """Seconds since it closed its segment; 0 if its process was not seen afterwards."""
        return (self.now_ns - (self.gone_ns or self.now_ns)) / 1e9 if self.is_ending else 0.0

    @property
    def idle_seconds(self) -> float:
        """Quiet time, including the time before the guest from torch's flight recorder."""
        record = self.flight if self.moved_ns == self.begin_ns else None
        groups = record.groups.values() if record else ()
        created = (entry.created_ns for group in groups for entry in group.entries[:1])
        latest_ns = max(created, default=None)
        if latest_ns is None:
            return self.quiet_seconds
        return max(self.now_seconds - latest_ns / 1e9, self.quiet_seconds)

    def epoch_seconds(self, at_ns: int) -> float:
        """Unix time of an instant of its host's monotonic clock."""
        return self.now_seconds - (self.now_ns - at_ns) / 1e9

    def operation(self, group: str, sequence: int) -> str | None:
        """Operation of a sequence number in a group; None if unknown."""
        return self.operations.get((group, sequence))

    def has_arrived(self, waiter: Waiter) -> bool:
        """Whether it takes or took part in the collective that another rank waits in."""
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
            return True  # its buckets have their own numbers: another number, the same backward
        return self.reached.get(arrival.group, -1) >= arrival.sequence


class Waiter(NamedTuple):
    """A rank and the call in which it waits."""

    rank: RankFacts
    arrival: Arrival
