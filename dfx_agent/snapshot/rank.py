"""Contract 2: the current state of one rank, with its work, collectives and shape ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dfx_agent.snapshot.devices import StageDevice
from dfx_agent.snapshot.event_loop import EventLoopRow
from dfx_agent.snapshot.memory import (
    DeviceMemory,
    HeldMemory,
    HostMemory,
    NonAllocatorMemory,
)
from dfx_agent.snapshot.scalars import ScalarRow
from dfx_agent.snapshot.time import OpenSpan, StageStamp, TimeSplit

PeakSource = Literal["table", "override", "unknown"]
RankState = Literal["live", "exited", "detached", "died", "unknown"]
RankSource = Literal["guest", "passive"]

ON_DEMAND = frozenset({"current", "scalars", "stamps", "gauges", "collectives", "device_stages"})
"""Fields of a RankRow that a hub requests from the node when a page shows the rank."""


@dataclass(frozen=True, slots=True)
class OutsideLook:
    """A process without a guest, observed from outside."""

    state: str
    """The kernel's state letter (R, S, D, T, …); "" after the exit."""
    cpu_seconds: float | None
    """CPU time since the process started."""
    cpu_ratio: float | None
    """CPUs in use since the previous sample."""
    num_threads: Mapping[str, int]
    """By state letter."""
    stage: str | None
    """Stage in the latest stack of the main thread; "" if unknown, None without a stack."""
    stage_samples: Mapping[str, int]
    """Number of stacks by stage; not a measure of time."""
    num_failed_samples: int
    is_starting: bool = False
    """Whether it is a rank that will get a guest: it has written no record yet."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One training process as one rank of a run."""

    role: str
    rank: str
    """The label: "0", or "p<pid>"."""
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
    """Records that were overwritten before this agent began to read; they do not count as lost."""
    counters_total: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    collectives: tuple[CollectiveTime, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    ledger: tuple[LedgerRow, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    """Devices of its framework's allocator."""
    device_names: tuple[str, ...] = ()
    """Devices of the machine that it uses."""
    device_bytes: Mapping[str, float] = field(default_factory=dict)
    """Memory that the driver reports for this process, by device."""
    device_stages: tuple[StageDevice, ...] = ()
    host_memory: HostMemory | None = None
    held: tuple[HeldMemory, ...] = ()
    beside_allocator: NonAllocatorMemory | None = None
    source: RankSource = "guest"
    """"passive" for a followed log, and for a process that is only observed from ``outside``.
    Neither has steps, stages or times, and zeros in those fields mean nothing."""
    outside: OutsideLook | None = None
    event_loop: EventLoopRow | None = None
    is_suspended: bool = False
    """Whether a signal has suspended the process (state T); None of its threads runs."""
    place: Mapping[str, int] = field(default_factory=dict)
    """Axis of the layout ("pipeline", "tensor", "data") -> index; only axes on which ranks of the
    role differ."""
    work: WorkRow | None = None
    is_full: bool = True
    """False on a hub that has not requested the ``ON_DEMAND`` fields: they are empty."""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model that a rank runs."""

    name: str
    num_parameters: int
    num_trained: int
    num_attentions: int
    reason: str = ""
    """Why its FLOPs are unknown; "" if they are known."""
    uncounted: tuple[str, ...] = ()
    """Kinds of its modules that are not included in the FLOPs."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """Model FLOPs of one outermost stage ("" outside all) in one step, and its duration."""

    stage: str
    forward_flops: float
    backward_flops: float
    seconds: float | None
    mfu_ratio: float | None
    """None if the peak or the duration is unknown."""


@dataclass(frozen=True, slots=True)
class WorkRow:
    """Model FLOPs of one step."""

    step: int | None
    """None if nothing was counted."""
    seconds: float
    device: str
    """Name of the compute device, "" if unknown."""
    stages: tuple[StageWork, ...]
    mfu_ratio: float | None
    peak_source: PeakSource
    peak_flops_per_second: float | None
    """Peak for the number format of most FLOPs."""
    reason: str
    """Why there is no MFU, "" if there is one."""
    models: tuple[ModelRow, ...]

    @property
    def flops(self) -> float:
        return sum(stage.forward_flops + stage.backward_flops for stage in self.stages)


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Host time of one rank in the collectives of one group and stage, since it was first seen.

    Rows of method "device" are different: time that a device's stream stalled, measured in every
    16th step. They have their own count and no bytes, and are never added to host time.
    """

    group: str
    stage: str
    method: str
    """How waiting and transfer were separated: "arrival" (arrival times of all ranks on one host's
    clock), "duration" (longer than the shortest rank, without a common clock), or "device"."""
    num_collectives: int
    num_bytes: float | None
    peers_seconds: float
    """Waiting for ranks that had not arrived."""
    transfer_seconds: float
    """Blocked time after the last rank had arrived."""
    unmatched_seconds: float
    """Blocked time for which the other ranks' arrivals are unknown."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One process group as one rank sees it."""

    group: str
    num_enqueued: int
    num_completed: int | None
    coverage_ratio: float | None
    """Recorded / enqueued collectives; below 1 the guest cannot see some. None before the first."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Batches of one rank at one boundary: the latest step, and totals since it was first seen."""

    boundary: str
    step: int | None
    num_samples: int
    mask_ratio: float | None
    smallest_group: int | None
    largest_group: int | None
    schema: str
    """Checksum (hex)."""
    shapes: str
    """Checksum (hex)."""
    num_crossings: int
    """Batches in total."""
    num_nonfinite: int
    """Samples with NaN or Inf, counted per column."""
    num_misaligned: int
    """Samples whose length breaks the token rule, counted per column."""
    num_unread: int
    """Columns that were not read."""
    num_left_out: int
    """Batches that were not inspected because steps were shorter than 0.25 s."""
    num_sampled: int | None
    num_tokens: int | None = None
    """Tokens that the mask selects; None without a mask."""


@dataclass(frozen=True, slots=True)
class LedgerMismatches:
    """How often batches did not match at a boundary; ``kind``: as in the "data" verdict's cause."""

    boundary: str
    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Batches of a run compared between boundaries; skipped steps could not be judged."""

    num_judged_steps: int
    num_skipped_steps: int
    num_incomplete_crossings: int
    mismatches: tuple[LedgerMismatches, ...]
    step: int | None = None
    """The latest judged step."""
    num_samples: int | None = None
    """Samples at the first boundary of that step over all ranks, replicas counted once."""
