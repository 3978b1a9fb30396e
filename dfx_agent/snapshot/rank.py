"""Contract 2: one rank as of now, with its work, its collectives and its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dfx_agent.snapshot.devices import StageDevice
from dfx_agent.snapshot.event_loop import EventLoopRow
from dfx_agent.snapshot.memory import BesideAllocator, DeviceMemory, HeldMemory, HostMemory
from dfx_agent.snapshot.scalars import ScalarRow
from dfx_agent.snapshot.time import OpenSpan, StageStamp, TimeSplit

PeakSource = Literal["table", "override", "unknown"]
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


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model that a rank runs. ``reason``: why its FLOPs are not known, "" where they are.

    ``uncounted``: kinds of its modules that are not in the FLOPs.
    """

    name: str
    num_parameters: int
    num_trained: int
    num_attentions: int
    reason: str = ""
    uncounted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageWork:
    """Model FLOPs of one outermost stage ("" outside all) in one step, and how long it was open.

    ``mfu_ratio`` is None where the peak or the time is not known.
    """

    stage: str
    forward_flops: float
    backward_flops: float
    seconds: float | None
    mfu_ratio: float | None


@dataclass(frozen=True, slots=True)
class WorkRow:
    """Of one step, None where nothing was counted. ``reason``: why there is no MFU, "" for none.

    ``device``: name of what computes it, "" unknown. ``peak_flops_per_second``: of the numbers that
    most FLOPs are of.
    """

    step: int | None
    seconds: float
    device: str
    stages: tuple[StageWork, ...]
    mfu_ratio: float | None
    peak_source: PeakSource
    peak_flops_per_second: float | None
    reason: str
    models: tuple[ModelRow, ...]

    @property
    def flops(self) -> float:
        return sum(stage.forward_flops + stage.backward_flops for stage in self.stages)


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Host time of one rank in the collectives of one group and stage, since it was first seen.

    ``peers_seconds`` is waiting for ranks that had not arrived, ``transfer_seconds`` the rest of
    the blocked time after the last had; ``unmatched_seconds`` was blocked too, but the other ranks'
    arrivals are not known. ``method`` is how they were told apart: "arrival" (entry times of all
    ranks on one host's clock), "duration" (longer than the shortest rank; no clock needed). Rows of
    "device" are of another kind: time that a device's stream stood, by duration, of every 16th step
    alone; they have their own number, no bytes, and are never added to the host's.
    """

    group: str
    stage: str
    method: str
    num_collectives: int
    num_bytes: float | None
    peers_seconds: float
    transfer_seconds: float
    unmatched_seconds: float


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One process group as one rank sees it.

    ``coverage_ratio`` is collectives recorded / collectives that the group counted; below 1 some
    are issued where the guest cannot see them. None before the group has moved.
    """

    group: str
    num_enqueued: int
    num_completed: int | None
    coverage_ratio: float | None


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Batches of one rank at one boundary: the newest step, and totals since it was first seen.

    ``schema`` and ``shapes`` are checksums (hex). Totals: ``num_crossings``; samples with NaN or
    Inf and with a length that breaks the token rule, one for each column; columns not read;
    ``num_left_out`` of the crossings were not looked at, as steps were shorter than 0.25 s.
    """

    boundary: str
    step: int | None
    num_samples: int
    mask_ratio: float | None
    smallest_group: int | None
    largest_group: int | None
    schema: str
    shapes: str
    num_crossings: int
    num_nonfinite: int
    num_misaligned: int
    num_unread: int
    num_left_out: int
    num_sampled: int | None


@dataclass(frozen=True, slots=True)
class LedgerMismatches:
    """How often something did not fit at a boundary; ``kind`` as in the "data" verdict's cause."""

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
    """The newest judged step."""
    num_samples: int | None = None
    """Samples at the first boundary of that step, all ranks, replicas once."""
