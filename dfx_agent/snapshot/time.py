"""Contract 2: where time went: spans, pieces of a step, what each rank did when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SpanKind = Literal["stage", "wait", "collective"]
PieceKind = Literal["stage", "wait", "idle"]


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
