"""The input of the judges of a job at one time: facts of N >= 1 nodes, as values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dfx_agent.facts.devices import Reported
from dfx_agent.facts.memory import MemoryFacts
from dfx_agent.facts.seat import Seat
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.snapshot import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts of connected nodes on the clocks of the local host, without processes of logs."""

    now_seconds: float
    """Unix time."""
    step_clock_seconds: float
    """Now, on the clock of ``spans``: a change of the wall clock does not move it."""
    seats: Sequence[Seat]
    """Processes of the job."""
    steps: Mapping[str, Callable[[], RoleSteps]]
    """Completed steps of each role that has processes; called only where they are judged."""
    spans: Mapping[str, Sequence[tuple[float, float]]]
    """(begin, end) in Unix seconds of the latest completed steps, of roles that live."""
    stepping: Collection[str]
    """Roles with a rank that is in a step."""
    grouped: Collection[str]
    """Roles with a rank that is in a process group."""
    memory: Callable[[], Sequence[MemoryFacts]]
    reported: Sequence[Reported] = ()
    """Events that devices report."""
    checkpoints: Collection[int] = ()
    """Completed steps in which a rank saved a checkpoint."""


class JobView(Protocol):
    """Limits verdicts to what is visible: one node of the job, or all nodes of a hub."""

    def of_ranks(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """Verdicts on hangs, crashes, stragglers and memory, limited to what is visible."""
        ...

    def of_all(self, verdicts: Iterable[Verdict]) -> Iterable[Verdict]:
        """All verdicts, limited to what is visible, with the verdicts that only this view has."""
        ...
