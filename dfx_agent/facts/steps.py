"""Closed steps: how long each rank worked and waited in steps that all ranks have passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.facts.layout import NO_LAYOUT, Layout
from dfx_agent.snapshot.document import Pairs

# Waits for ranks of the same role. UniLab's learners wait in sync_coordination. In queue, policy,
# collector, replay_batch and remote a rank waits for a process of another role.
SYNC_COORDINATION = "sync_coordination"
PEER_WAITS = frozenset({"collective", "barrier", SYNC_COORDINATION})
# waits in which a rank has no data to train on
SAMPLE_WAITS = ("collector", "queue")
# kind and name of a part of the time: ("stage", "rollout"), ("wait", "queue"), and these two
Part = tuple[str, str]
IDLE: Part = ("idle", "")
TRANSFER: Part = ("transfer", "")

# if a rank is so many steps ahead, missing parts of a step come late or never
SUPERSEDED_BY = 2
MAX_OPEN_STEPS = 64
# shorter steps are combined, see docs/decisions/straggler.md
LEAST_SECONDS = 0.25


class SchedTimes(NamedTuple):
    """Scheduler times of a thread over some period."""

    ran_ns: int
    """Time on a CPU."""
    delayed_ns: int
    """Time in which it was runnable without a CPU."""
    crowd: float | None = None
    """Runnable threads per CPU of the host in that time; None if unknown."""
    system_ns: int = 0
    """Part of ``ran_ns`` in the kernel, including page faults; 0 if unknown."""
    num_faults: int = 0
    """Number of page faults."""

    @property
    def share(self) -> float | None:
        """Share of its runnable time on a CPU, 0 to 1; None if it was never runnable."""
        wanted = self.ran_ns + self.delayed_ns
        return self.ran_ns / wanted if wanted > 0 else None


class ThreadTimes(NamedTuple):
    """Scheduler times of one thread since its start."""

    ran_ns: int
    delayed_ns: int
    num_turns: int
    """How often it was scheduled on a CPU."""

    def since(self, before: ThreadTimes) -> ThreadTimes:
        """The difference to an earlier reading."""
        ran_ns, delayed_ns, num_turns = map(int.__sub__, self, before)
        return ThreadTimes(ran_ns, delayed_ns, num_turns)


class GroupTime(NamedTuple):
    """Collectives of one process group that one rank was blocked in during a step."""

    num_collectives: int
    latest: int
    """Highest sequence number."""
    blocked_seconds: float


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank in one step.

    Time in collectives and in explicit waits for peers counts as waiting, except for the data
    transfer of matched collectives.
    """

    wall_seconds: float
    waited_seconds: float
    """Waiting for peers."""
    parts: Pairs[Part, float]
    """All other time."""
    tokens: Mapping[str, float] | None
    """Tokens by kind; None if the rank reported no tokens."""
    num_forward_tokens: float | None = None
    """Inputs of forward passes for training, with padding; None if unknown."""
    busy_seconds: float | None = None
    """CPU time of the training thread; None if unknown."""
    processor: SchedTimes | None = None
    """Scheduler times of the training thread; None if unknown."""
    groups: Mapping[str, GroupTime] = field(default_factory=dict)
    """By process group, for a judge of several nodes; empty if it is not needed."""
    waits: Pairs[tuple[str, str], float] = field(default_factory=dict)
    """(kind, enclosing stage) -> seconds, of all waits. Those for peers include data transfer."""
    num_samples: float | None = None
    """Rows of forward passes for training."""

    @property
    def num_tokens(self) -> float | None:
        """Tokens of all kinds; None if the rank reported no tokens."""
        return sum(self.tokens.values()) if self.tokens else None

    @property
    def work_seconds(self) -> float:
        return self.wall_seconds - self.waited_seconds


@dataclass(frozen=True, slots=True)
class Step:
    """A step that all living ranks have passed, or the mean of several short steps."""

    step: int
    """The last one of several steps."""
    begin_seconds: float
    num_lost: int
    """Records of all ranks that were lost so far."""
    ranks: Mapping[str, RankStep]
    num_steps: int = 1
    """Number of steps in the mean."""
    last_end_seconds: float | None = None
    """Unix time at which the last rank ended it; None if only durations are known."""

    @property
    def end_seconds(self) -> float:
        """When the last rank ended it; estimated from durations if no time is known."""
        if self.last_end_seconds is not None:
            return self.last_end_seconds
        longest = max(rank_step.wall_seconds for rank_step in self.ranks.values())
        return self.begin_seconds + longest


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The devices of one rank over the last minute."""

    names: tuple[str, ...]
    """Such as "nvidia:3"."""
    clock_hertz: float | None
    throttled_ratio: float | None
    """Share of the time in which the clocks were reduced."""
    reasons: tuple[str, ...] = ()
    """Why the clocks were reduced."""


@dataclass(frozen=True, slots=True)
class RoleSteps:
    """The latest closed steps of one role."""

    role: str
    steps: tuple[Step, ...]
    """Oldest first; each lasts ``LEAST_SECONDS`` or longer."""
    coverage_ratio: float | None
    """Recorded share of a rank's collectives, of the rank with the least; None if unknown."""
    num_ranks: int
    """Ranks that are seen."""
    world_size: int
    layout: Layout = NO_LAYOUT
    devices: Mapping[str, DeviceState] = field(default_factory=dict)
    """By label of the rank."""
