"""Contract 2: one rank as of now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dfx_agent.snapshot.collectives import CollectiveTime, GroupRow
from dfx_agent.snapshot.devices import StageDevice
from dfx_agent.snapshot.event_loop import EventLoopRow
from dfx_agent.snapshot.ledger import LedgerRow
from dfx_agent.snapshot.memory import BesideAllocator, DeviceMemory, HeldMemory, HostMemory
from dfx_agent.snapshot.scalars import ScalarRow
from dfx_agent.snapshot.time import OpenSpan, StageStamp, TimeSplit
from dfx_agent.snapshot.work import WorkRow

RankState = Literal["live", "exited", "detached", "died", "unknown"]
RankSource = Literal["guest", "passive"]


@dataclass(frozen=True, slots=True)
class OutsideLook:
    """A process without a guest as it is seen from outside.

    ``state`` and the keys of ``num_threads`` are the kernel's letters (R, S, D, T, ...), "" when it
    is gone. ``cpu_seconds`` since the process began, ``cpu_ratio`` in cores, lately. ``stage`` is
    what the newest stack of the main thread shows, "" when none of its frames is known, None
    without a stack; ``stage_samples`` counts stacks by stage and is no measure of time.
    """

    state: str
    cpu_seconds: float | None
    cpu_ratio: float | None
    num_threads: Mapping[str, int]
    stage: str | None
    stage_samples: Mapping[str, int]
    num_failed_samples: int
    is_starting: bool = False
    """Whether it is a rank that is about to have a guest: it has written nothing yet."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One training process as one rank of a run. ``rank`` is the label: "0", or "p<pid>".

    ``source`` is "passive" for a log that is followed and for a process that is only seen from
    ``outside``: neither has steps, stages or times, and zeros in those fields mean nothing.
    ``num_earlier_records`` were overwritten before this agent began to read: not lost by it.
    ``devices`` are by its framework's allocator; ``device_names`` those of the machine that it
    uses, ``device_bytes`` what their driver says that it has on them.
    ``place``: axis of the job's layout ("pipeline", "tensor", "data") -> its number along it, of
    axes along which ranks of its role differ.
    """

    role: str
    rank: str
    local_rank: int | None
    world_size: int | None
    node: str
    pid: int
    attempt: int
    state: RankState
    begin_seconds: float
    last_event_seconds: float | None
    step: int | None
    step_begin_seconds: float | None
    inflight: tuple[OpenSpan, ...]
    totals: TimeSplit
    current: TimeSplit
    last: TimeSplit | None
    tokens_total: Mapping[str, float]
    queue_depth: Mapping[str, float]
    policy_version: int | None
    scalars: tuple[ScalarRow, ...]
    stamps: tuple[StageStamp, ...]
    num_records: int
    num_lost_records: int
    num_late_records: int
    num_guest_drops: int
    num_earlier_records: int = 0
    counters_total: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    collectives: tuple[CollectiveTime, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    ledger: tuple[LedgerRow, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    device_names: tuple[str, ...] = ()
    device_bytes: Mapping[str, float] = field(default_factory=dict)
    device_stages: tuple[StageDevice, ...] = ()
    host_memory: HostMemory | None = None
    held: tuple[HeldMemory, ...] = ()
    beside_allocator: BesideAllocator | None = None
    source: RankSource = "guest"
    outside: OutsideLook | None = None
    event_loop: EventLoopRow | None = None
    is_suspended: bool = False
    """Whether a signal has suspended the process (state T); None of its threads runs."""
    place: Mapping[str, int] = field(default_factory=dict)
    work: WorkRow | None = None
