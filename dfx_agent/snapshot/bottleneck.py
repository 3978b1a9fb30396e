"""Contract 2: what holds the pipeline of a run up in a window of steps; no fault by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dfx_agent.snapshot.verdict import VerdictState

# tool: the environment's tools; policy gate: rollout waits for newer weights; data: samples are
# there, tensors not yet; peers: ranks of one role wait for each other
BoundBy = Literal[
    "stalled",
    "rollout",
    "tool",
    "reward",
    "train",
    "peers",
    "weight sync",
    "policy gate",
    "data",
    "event loop",
]

# what is wrong with a component, whatever it is called
CauseKind = Literal[
    "still engine",
    "slow engine",
    "lost engine",
    "few requests",
    "stale samples",
    "weight sync",
    "slow tool",
    "slow reward",
    "held loop",
    "slow rank",
    "hang",
]


# work: inside a stage; wait: inside a wait, whatever stage is around it; unmarked: inside neither
PartKind = Literal["work", "wait", "unmarked", "other"]


@dataclass(frozen=True, slots=True)
class StepPart:
    """One part of the mean step of a mean rank. All parts of a step sum to its wall time."""

    name: str
    """As people call it: "update", "waiting for other ranks", "unmarked code"."""
    kind: PartKind
    seconds: float
    ratio: float
    """Share of the step; the ratios of all parts sum to 1."""


@dataclass(frozen=True, slots=True)
class PipelineCause:
    """One component that costs the pipeline more than it should.

    ``component`` as people call it: "rollout replica 1", "trainer rank 1". ``amount`` in ``unit``
    ("seconds", "requests", "groups", "times" as slow as others), of a step where the unit is
    seconds or groups. ``since_step``: of the role that trains, None where nobody saw it begin.
    """

    bound_by: BoundBy
    component: str
    sentence: str
    amount: float | None = None
    unit: str = "seconds"
    since_step: int | None = None
    kind: CauseKind = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Of the steps ``first_step`` to ``last_step`` of ``role``, which trains.

    ``state`` "clear" means that nothing takes more than it should. ``bound_by`` is for jobs whose
    training and rollout work at the same time; where they take turns it is None, and ``parts`` say
    where a step goes. ``cost_seconds`` of the mean step of ``step_seconds`` are lost
    to ``bound_by``, ``cost_ratio`` is their share. ``chain``: what is felt first, each because of
    the next. ``causes``: the one that is behind the others first. ``balance``: how the
    pools would have to change so that nobody waits, and what is left out; "" where neither is the
    matter. ``parts``: where the mean step of a mean rank goes, largest first.
    """

    state: VerdictState
    summary: str
    role: str = ""
    bound_by: BoundBy | None = None
    cost_seconds: float | None = None
    cost_ratio: float | None = None
    step_seconds: float | None = None
    chain: tuple[str, ...] = ()
    causes: tuple[PipelineCause, ...] = ()
    balance: str = ""
    first_step: int | None = None
    last_step: int | None = None
    parts: tuple[StepPart, ...] = ()


def bound_text(verdict: Bottleneck) -> str:
    """As in "rollout-bound", "stalled"; "" where it is not told."""
    bound = verdict.bound_by or ""
    return f"{bound}-bound" if bound not in {"", "stalled"} else bound


def is_breakdown(verdict: Bottleneck) -> bool:
    """Whether it says where a step goes, because the roles of the job take turns."""
    return bool(verdict.parts and verdict.chain) and verdict.bound_by is None
