"""Closed steps: what each rank worked and waited for in steps that all of its role have passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.facts.devices import DeviceState
from dfx_agent.facts.layout import NOT_TOLD, Layout
from dfx_agent.facts.pairs import Pairs
from dfx_agent.facts.processor import SchedTimes
from dfx_agent.snapshot import TimeSplit

# kind and name of where time went: ("stage", "rollout"), ("wait", "queue"), and these two
Part = tuple[str, str]
IDLE: Part = ("idle", "")
TRANSFER: Part = ("transfer", "")

# a rank so many steps ahead: what is missing of a step comes late, or never
SUPERSEDED_BY = 2
MAX_OPEN_STEPS = 64
# shorter steps are taken together, why: docs/decisions/straggler.md
LEAST_SECONDS = 0.25


class GroupTime(NamedTuple):
    """Collectives of one process group that one rank was blocked in during a step.

    ``newest`` is the last of their numbers.
    """

    num_collectives: int
    newest: int
    blocked_seconds: float


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank in one step. ``waited_seconds`` is waiting for peers, ``parts`` is all the rest.

    Time in collectives and in explicit waits for peers counts as waiting, but for the transfer of
    matched collectives. ``num_tokens`` is None when none were told, ``num_forward_tokens`` (taken
    in by forward passes that are trained on, padding included) and ``busy_seconds`` (processor time
    of the thread that trains) where they are not known, nor ``processor``, by the kernel's count.
    ``groups``: by process group, for a judge of several nodes; empty where nobody asked.
    """

    wall_seconds: float
    waited_seconds: float
    parts: Pairs[Part, float]
    num_tokens: float | None
    num_forward_tokens: float | None = None
    busy_seconds: float | None = None
    processor: SchedTimes | None = None
    groups: Mapping[str, GroupTime] = field(default_factory=dict)
    split: TimeSplit | None = None
    """Where its time went, by stage of each wait. Only on its own node: it is not sent."""
    tokens: Mapping[str, float] | None = None
    """``num_tokens`` by kind; the same."""
    num_samples: float | None = None
    """Rows that trained forward passes took in; the same."""

    @property
    def work_seconds(self) -> float:
        return self.wall_seconds - self.waited_seconds


@dataclass(frozen=True, slots=True)
class Step:
    """A step that all living ranks have passed. ``num_lost``: records lost by then, all ranks.

    ``num_steps`` above 1: the mean of so many short ones, and ``step`` is the last of them.
    """

    step: int
    begin_seconds: float
    num_lost: int
    ranks: Mapping[str, RankStep]
    num_steps: int = 1
    last_end_seconds: float | None = None
    """Unix time at which the last rank ended it; None where only durations are known."""

    @property
    def end_seconds(self) -> float:
        """When the last rank ended it; from durations, as if all ranks had begun together."""
        if self.last_end_seconds is not None:
            return self.last_end_seconds
        return self.begin_seconds + max(of.wall_seconds for of in self.ranks.values())


@dataclass(frozen=True, slots=True)
class RoleSteps:
    """The newest closed steps of one role, oldest first; each lasts ``LEAST_SECONDS`` or longer.

    ``coverage_ratio``: of the collectives of a rank that were recorded, of the rank that has the
    least; None unknown. ``num_ranks`` are seen of ``world_size``. ``layout``: as far as told.
    ``devices``: of each rank that has some, by its label.
    """

    role: str
    steps: tuple[Step, ...]
    coverage_ratio: float | None
    num_ranks: int
    world_size: int
    layout: Layout = NOT_TOLD
    devices: Mapping[str, DeviceState] = field(default_factory=dict)
