"""Contract 2: what the agent knows at one instant, as frozen values.

Readers and devices build these; exporters, the web page and commands render them. Neither side
imports the other. Units stand in the names; ``*_seconds`` stamps without "elapsed" or "total" in
the docstring are Unix time. ``None`` means "nobody told us" and must never be rendered as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dfx_agent.snapshot_dropped import DroppedRanks
from dfx_agent.snapshot_faults import Blindness, FaultPart, FaultRow
from dfx_agent.snapshot_health import DetectorParameters, SignalHistory, SignalState
from dfx_agent.snapshot_incidents import UNJUDGED, Incident, Standing
from dfx_agent.snapshot_ledger import LedgerRow, LedgerState

SpanKind = Literal["stage", "wait", "collective"]
PieceKind = Literal["stage", "wait", "idle"]
RankState = Literal["live", "exited", "died", "unknown"]
RankSource = Literal["guest", "passive"]


@dataclass(frozen=True, slots=True)
class Moments:
    """A mergeable summary of one scalar over ranks: merge states, divide once at the end."""

    count: int
    sum: float
    min: float
    max: float

    @classmethod
    def of(cls, value: float) -> Moments:
        return cls(1, value, value, value)

    def merge(self, other: Moments) -> Moments:
        count, total = self.count + other.count, self.sum + other.sum
        return Moments(count, total, min(self.min, other.min), max(self.max, other.max))

    @property
    def mean(self) -> float:
        return self.sum / self.count


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Where one rank's wall time went: ``wall = active + sum of all waits + idle`` (exactly).

    ``stage_seconds`` is exclusive time by stage, waits taken out; concurrent spans of one stage
    count once. Stages that overlap each other may sum to more than ``active_seconds``.
    ``wait_seconds`` is kind -> enclosing stage ("" outside any stage) -> seconds.
    """

    wall_seconds: float = 0.0
    active_seconds: float = 0.0
    idle_seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    wait_seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """What has begun and not ended, outermost first within a rank.

    A collective is named "op@group" and has the group's ``sequence`` number, if that is known.
    """

    kind: SpanKind
    name: str
    begin_seconds: float
    elapsed_seconds: float
    step: int | None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class StageStamp:
    """When a stage last began and last ended; ``slot`` tells repeats within one step apart."""

    stage: str
    slot: int
    begin_seconds: float
    end_seconds: float | None


@dataclass(frozen=True, slots=True)
class ScalarRow:
    """The newest value of one native key.

    ``metric`` and ``labels`` name the catalogue metric it maps to, ``metric`` is None for a key
    that no mapping knows. ``moments`` is in the metric's unit (native unit when unmapped).
    """

    key: str
    metric: str | None
    labels: Mapping[str, str]
    step: int | None
    time_seconds: float
    moments: Moments


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
class DeviceMemory:
    """The framework allocator of one device. ``stage_peak_bytes`` is by own sampling."""

    device: str
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    limit_bytes: float | None = None
    num_alloc_retries: float | None = None
    num_ooms: float | None = None
    stage_peak_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Anonymous memory of one process; the slope is None until enough steps were seen."""

    anonymous_bytes: float
    slope_bytes_per_step: float | None = None


VerdictKind = Literal["hang", "straggler", "crash", "memory", "divergence", "data"]
VerdictState = Literal["found", "clear", "insufficient evidence"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the agent concludes about one role of a run, and from what.

    ``ranks`` are to blame, ``summary`` is one sentence for people, ``evidence`` the figures behind
    it, one line each. ``cause`` is a stable word; ``lost_seconds`` is per step.
    """

    kind: VerdictKind
    state: VerdictState
    role: str
    summary: str
    ranks: tuple[str, ...] = ()
    stage: str = ""
    cause: str = ""
    step: int | None = None
    since_seconds: float | None = None
    lost_seconds: float | None = None
    evidence: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class RankRow:
    """One training process as one rank of a run. ``rank`` is the label: "0", or "p<pid>".

    ``source`` is "passive" for a log that is followed and for a process that is only seen from
    ``outside``: neither has steps, stages or times, and zeros in those fields mean nothing.
    ``num_earlier_records`` were overwritten before this agent began to read: not lost by it.
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
    host_memory: HostMemory | None = None
    source: RankSource = "guest"
    outside: OutsideLook | None = None


@dataclass(frozen=True, slots=True)
class StepCell:
    """One rank within one step."""

    rank: str
    split: TimeSplit
    tokens: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StepRow:
    """A closed step of one role. ``missing_ranks`` never reached its end (dead or stuck)."""

    step: int
    role: str
    begin_seconds: float
    end_seconds: float
    missing_ranks: tuple[str, ...]
    bubble_ratio: float | None
    cells: tuple[StepCell, ...]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One training run; ``steps`` are the newest closed steps, oldest first.

    ``signals`` is None until the run reported a metric that a signal is made of;
    ``num_late_signals`` came after their step was judged; ``sustained_tokens_ratio`` is role ->
    tokens of the newest two steps / median before, ``judged_seconds`` kind of verdict -> Unix time.
    ``incidents`` join verdicts and alerts; ``standing`` alone says whether anything is green.
    """

    run: str
    framework: str
    attempt: int
    begin_seconds: float
    ranks: tuple[RankRow, ...]
    steps: tuple[StepRow, ...]
    scalars: tuple[ScalarRow, ...]
    num_stale_scalars: int = 0
    verdicts: tuple[Verdict, ...] = ()
    signals: SignalState | None = None
    ledger: LedgerState | None = None
    num_late_signals: int = 0
    sustained_tokens_ratio: Mapping[str, float] = field(default_factory=dict)
    faults: tuple[FaultRow, ...] = ()
    judged_seconds: Mapping[str, float] = field(default_factory=dict)
    incidents: tuple[Incident, ...] = ()
    standing: Standing = UNJUDGED
    blind: Blindness | None = None
    dropped_ranks: tuple[DroppedRanks, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentProblem:
    """A segment the agent refuses or cannot read, with the reason and the remedy in one line."""

    path: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class AgentRow:
    """The agent about itself. ``other_agent_pid`` serves the same folder and does the reaping.

    ``is_job_ended``: it was started with a job, which has ended; it ends soon, too.
    ``read_seconds``: when all was last read to the end. ``num_faults`` counts them by part.
    """

    version: str
    pid: int
    node: str
    begin_seconds: float
    num_polls: int
    poll_elapsed_seconds: float
    num_segments: int
    num_records: int
    num_lost_records: int
    num_reaped_segments: int
    num_exporter_errors: int
    other_agent_pid: int | None
    problems: tuple[SegmentProblem, ...]
    detector: DetectorParameters | None = None
    is_job_ended: bool = False
    read_seconds: float | None = None
    blind: Blindness | None = None
    faults: tuple[FaultRow, ...] = ()
    num_faults: Mapping[FaultPart, int] = field(default_factory=dict)
    num_dropped_runs: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one instant."""

    time_seconds: float
    agent: AgentRow
    runs: tuple[RunRow, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one rank's time; neighbours of the same name are merged."""

    kind: PieceKind
    name: str
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One rank's step as pieces. ``end_seconds`` is None while the step is running."""

    role: str
    rank: str
    step: int | None
    begin_seconds: float
    end_seconds: float | None
    num_omitted_pieces: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class ScalarHistory:
    """One native key over steps, merged over ranks (mean), oldest first."""

    key: str
    metric: str | None
    unit: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


class Source(Protocol):
    """What the renderers ask; implemented by the agent."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot; cheap, never blocks."""

    def scalar_history(self, run: str, keys: Sequence[str]) -> Iterable[ScalarHistory]:
        """History of the given native keys, all keys when empty. KeyError on an unknown run."""

    def timeline(self, run: str, num_steps: int) -> tuple[TimelineRow, ...]:
        """Each rank's newest steps, the running one included. KeyError on an unknown run."""

    def signal_history(self, run: str, num_steps: int) -> SignalHistory:
        """Training health over the newest steps. KeyError on an unknown run."""

    def reset_signals(self, run: str) -> None:
        """Take the present state of ``run`` as normal. KeyError on an unknown run."""


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One alert that fires now; ``labels`` (alertname, run, ...) tell it from every other.

    Begin and ``sentence`` are of its ``incident`` (an id). ``is_inhibited``: another one speaks.
    """

    run: str
    alert: str
    severity: str
    labels: Mapping[str, str]
    summary: str
    since_seconds: float
    since_step: int | None
    is_inhibited: bool
    lines: tuple[str, ...]
    meaning: str
    diagnosis: str
    mitigation: str
    verdict: str = ""
    incident: str = ""
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """One receiver of alerts; ``target`` is its host without anything secret.

    ``is_reached`` is None before the first attempt. ``last_error`` is one line, "" after a success.
    """

    kind: Literal["alertmanager", "webhook"]
    target: str
    is_reached: bool | None
    num_sent: int
    num_failed: int
    num_dropped: int
    num_waiting: int
    last_error: str


@dataclass(frozen=True, slots=True)
class Alerts:
    """What fires at one instant, worst first, and how its delivery stands."""

    time_seconds: float
    alerts: tuple[AlertRow, ...]
    deliveries: tuple[DeliveryRow, ...]
    num_evaluations: int
    num_errors: int


class AlertSource(Protocol):
    """What the renderers of alerts ask; implemented by ``alerting``."""

    def alerts(self) -> Alerts:
        """As of the newest evaluation; cheap, never blocks."""
