"""Contract 2: what the agent knows at one instant, as frozen values.

Readers and devices build these; exporters, the web page and commands render them. Neither side
imports the other. Units stand in the names; ``*_seconds`` stamps without "elapsed" or "total" in
the docstring are Unix time. ``None`` means "nobody told us" and must never be rendered as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

SpanKind = Literal["stage", "wait", "collective"]
PieceKind = Literal["stage", "wait", "idle"]
RankState = Literal["live", "exited", "died", "unknown"]


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
        return Moments(
            self.count + other.count,
            self.sum + other.sum,
            min(self.min, other.min),
            max(self.max, other.max),
        )

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
    ranks on one host's clock), "duration" (longer than the shortest rank; no clock needed).
    """

    group: str
    stage: str
    method: str
    num_collectives: int
    num_bytes: float
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


VerdictKind = Literal["hang", "straggler", "crash", "memory"]
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
class RankRow:
    """One training process as one rank of a run. ``rank`` is the label: "0", or "p<pid>"."""

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
    counters_total: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    collectives: tuple[CollectiveTime, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    host_memory: HostMemory | None = None


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

    ``signals`` is None until the run reported a metric that a signal is made of.
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


@dataclass(frozen=True, slots=True)
class SegmentProblem:
    """A segment the agent refuses or cannot read, with the reason and the remedy in one line."""

    path: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class AgentRow:
    """The agent about itself. ``other_agent_pid`` serves the same folder and does the reaping."""

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

    def scalar_history(self, run: str, keys: Sequence[str]) -> tuple[ScalarHistory, ...]:
        """History of the given native keys, all keys when empty. KeyError on an unknown run."""

    def timeline(self, run: str, num_steps: int) -> tuple[TimelineRow, ...]:
        """Each rank's newest steps, the running one included. KeyError on an unknown run."""


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One training signal against its own baseline, as of the newest step.

    ``value`` and the band are in the signal's unit; the band is where z is within ±2. ``z`` is None
    when the step was not scored. ``cusum_*`` alarm above 8. ``drift_ratio`` (log signals) and
    ``drift_difference`` (reward, truncation) compare the newest 8 values with the 5th to 21st.
    """

    signal: str
    symptom: str
    value: float | None
    z: float | None
    cusum_up: float
    cusum_down: float
    baseline_low: float | None
    baseline_high: float | None
    is_baseline_ready: bool
    recent_median: float | None
    drift_ratio: float | None
    drift_difference: float | None


@dataclass(frozen=True, slots=True)
class SymptomRow:
    """A family of signals in one direction; ``onset_step`` is where the change began."""

    symptom: str
    direction: Literal["up", "down"]
    is_active: bool
    onset_step: int | None


@dataclass(frozen=True, slots=True)
class SignalState:
    """Training health of one run after one step; ``row`` counts step reports from 0.

    ``is_latched``: a critical compound is active and the baselines are frozen, since
    ``latched_step``. ``num_nonfinite_steps``: where ("grad", "logprob", "loss", "reward") -> steps
    of the newest 5 that reported NaN or Inf there. ``num_identical_score_steps``: consecutive
    steps whose highest and lowest score were the same, None when scores are not reported.
    """

    row: int
    step: int
    signals: tuple[SignalRow, ...]
    symptoms: tuple[SymptomRow, ...]
    is_reward_improving: bool | None
    is_latched: bool
    latched_step: int | None
    num_nonfinite_steps: Mapping[str, int]
    num_identical_score_steps: int | None
    had_score_signal: bool
