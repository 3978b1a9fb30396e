"""Contract 2: what is kept of a hang or a crash, in a file that outlives the job and the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dfx_agent.snapshot.run import RunRow
from dfx_agent.snapshot.verdict import Verdict

EvidenceOutcome = Literal["open", "over", "job ended", "agent ended"]


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """A collective in torch's flight recorder; ``sequence`` is None for a send or a receive.

    ``tensors`` is text, as in "[1048576] float32".
    """

    operation: str
    tensors: str
    num_elements: int
    sequence: int | None
    group: str
    group_description: str
    backend: str
    issued_seconds: float
    is_finished: bool


@dataclass(frozen=True, slots=True)
class RecordedThread:
    """``frames`` from the outermost call in, as in "forward (train.py:7)"."""

    name: str
    native_id: int
    is_main: bool
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """Where one rank stood. ``quiet_seconds``: it had not moved for so long when it was found.

    ``last_collective`` is group -> number of its newest; ``recorded_collectives`` newest first.
    """

    role: str
    rank: str
    pid: int
    quiet_seconds: float
    last_collective: Mapping[str, int]
    stacks_from: str
    threads: tuple[RecordedThread, ...]
    recorded_collectives: tuple[RecordedCollective, ...] = ()


@dataclass(frozen=True, slots=True)
class SameStack:
    """Ranks whose main threads are at one place; ``frames`` from the outermost call in."""

    ranks: tuple[str, ...]
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IncidentEvidence:
    """One hang or crash: the run as it was when it was found, and where each rank stood.

    ``end_seconds`` is None while it lasts. ``format`` goes up when an older file cannot be read.
    """

    format: Literal[1]
    agent_version: str
    node: str
    begin_seconds: float
    end_seconds: float | None
    outcome: EvidenceOutcome
    verdict: Verdict
    run: RunRow
    places: tuple[RankEvidence, ...]
    stacks: tuple[SameStack, ...]
