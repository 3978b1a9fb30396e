"""Contract 2: what limits the throughput of a run in a window of steps; not a fault by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dfx_agent.snapshot.verdict import VerdictState

# tool: the environment's tools; policy gate: rollout waits for newer weights; data: samples exist,
# but their tensors have not arrived; peers: ranks of one role wait for each other
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

# what is wrong with a component
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
    """In plain words: "update", "waiting for other ranks", "unmarked code"."""
    kind: PartKind
    seconds: float
    ratio: float
    """Share of the step; the ratios of all parts sum to 1."""


@dataclass(frozen=True, slots=True)
class PipelineCause:
    """One component that costs the pipeline more than it should."""

    bound_by: BoundBy
    component: str
    """In plain words: "rollout replica 1", "trainer rank 1"."""
    sentence: str
    amount: float | None = None
    """Cost in ``unit``; per step if the unit is "seconds" or "groups"."""
    unit: str = "seconds"
    """"seconds", "requests", "groups", or "times" as slow as the others."""
    since_step: int | None = None
    """Step of the training role; None if its begin was not observed."""
    kind: CauseKind = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Bottleneck of the training role over the steps ``first_step`` to ``last_step``."""

    state: VerdictState
    """"clear" means that no component takes more time than it should."""
    summary: str
    role: str = ""
    bound_by: BoundBy | None = None
    """None if training and rollout take turns; ``parts`` then show where the time goes."""
    cost_seconds: float | None = None
    """Seconds of the mean step that are lost to ``bound_by``."""
    cost_ratio: float | None = None
    """``cost_seconds`` as a share of ``step_seconds``."""
    step_seconds: float | None = None
    chain: tuple[str, ...] = ()
    """From symptom to cause: each entry is caused by the next one."""
    causes: tuple[PipelineCause, ...] = ()
    """The cause of the other causes is first."""
    balance: str = ""
    """How to resize the pools so that none waits, and which parts are not included; may be ""."""
    first_step: int | None = None
    last_step: int | None = None
    parts: tuple[StepPart, ...] = ()
    """Where the time of the mean step of a mean rank goes, largest first."""


def bound_text(verdict: Bottleneck) -> str:
    """For example "rollout-bound" or "stalled"; "" if unknown."""
    bound = verdict.bound_by or ""
    return f"{bound}-bound" if bound not in {"", "stalled"} else bound


def is_breakdown(verdict: Bottleneck) -> bool:
    """Whether it only shows the parts of a step, because the roles of the job take turns."""
    return bool(verdict.parts and verdict.chain) and verdict.bound_by is None
