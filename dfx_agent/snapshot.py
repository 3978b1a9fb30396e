"""Contract 2: what the agent knows at one instant, as frozen values.

Readers and devices build these; exporters, the web page and commands render them. Neither side
imports the other. Units stand in the names; ``*_seconds`` stamps without "elapsed" or "total" in
the docstring are Unix time. ``None`` means "nobody told us" and must never be rendered as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

SpanKind = Literal["stage", "wait"]
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
    """A stage or wait that has begun and not ended, outermost first within a rank."""

    kind: SpanKind
    name: str
    begin_seconds: float
    elapsed_seconds: float
    step: int | None


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
    """One training run; ``steps`` are the newest closed steps, oldest first."""

    run: str
    framework: str
    attempt: int
    begin_seconds: float
    ranks: tuple[RankRow, ...]
    steps: tuple[StepRow, ...]
    scalars: tuple[ScalarRow, ...]
    num_stale_scalars: int = 0


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
