"""Contract 2: evidence of a hang or a crash, stored in a file that outlives job and agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dfx_agent.snapshot.run import RunRow
from dfx_agent.snapshot.verdict import Verdict

EvidenceOutcome = Literal["open", "over", "job ended", "agent ended"]


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """A collective in torch's flight recorder."""

    operation: str
    tensors: str
    """For example "[1048576] float32"."""
    num_elements: int
    sequence: int | None
    """None for a send or a receive."""
    group: str
    group_description: str
    backend: str
    issued_seconds: float
    is_finished: bool


@dataclass(frozen=True, slots=True)
class RecordedThread:
    """``frames`` start with the outermost call, for example "forward (train.py:7)"."""

    name: str
    native_id: int
    is_main: bool
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """What one rank was doing."""

    role: str
    rank: str
    pid: int
    quiet_seconds: float
    """Time without progress when the incident was found."""
    last_collective: Mapping[str, int]
    """Group -> sequence number of its latest collective."""
    stacks_from: str
    threads: tuple[RecordedThread, ...]
    recorded_collectives: tuple[RecordedCollective, ...] = ()
    """Latest first."""


@dataclass(frozen=True, slots=True)
class SameStack:
    """Ranks whose main threads have the same stack; the outermost call is first."""

    ranks: tuple[str, ...]
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IncidentEvidence:
    """One hang or crash: the run when it was found, and what each rank was doing."""

    format: Literal[1]
    """Increases if older files can no longer be read."""
    agent_version: str
    node: str
    begin_seconds: float
    end_seconds: float | None
    """None while the incident continues."""
    outcome: EvidenceOutcome
    verdict: Verdict
    run: RunRow
    places: tuple[RankEvidence, ...]
    stacks: tuple[SameStack, ...]
