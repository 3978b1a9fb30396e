"""Contract 2: where time was spent: spans, pieces of a step, stamps of stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SpanKind = Literal["stage", "wait", "collective"]
PieceKind = Literal["stage", "wait", "idle"]


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """How one rank's wall time was spent: ``wall = active + sum of all waits + idle`` (exactly)."""

    wall_seconds: float = 0.0
    active_seconds: float = 0.0
    idle_seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Exclusive time by stage without waits. Stages that overlap may sum to more than active."""
    wait_seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Kind of wait -> enclosing stage ("" outside all stages) -> seconds."""


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that has not ended; spans of a rank are ordered from the outermost to the innermost.

    A collective is named "operation@group".
    """

    kind: SpanKind
    name: str
    begin_seconds: float
    elapsed_seconds: float
    step: int | None
    sequence: int | None = None
    """Sequence number of a collective in its group, if known."""


@dataclass(frozen=True, slots=True)
class StageStamp:
    """When a stage last began and ended; repeats within one step have different slots."""

    stage: str
    slot: int
    begin_seconds: float
    end_seconds: float | None


@dataclass(frozen=True, slots=True)
class Piece:
    """A time slice of one rank; neighbours with the same name are joined."""

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
