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

    ``state`` "clear" means balanced. ``cost_seconds`` of the mean step of ``step_seconds`` are lost
    to ``bound_by``, ``cost_ratio`` is their share. ``chain``: what is felt first, each because of
    the next. ``causes``: the one that is behind the others first. ``balance``: how the
    pools would have to change so that nobody waits, and what is left out; "" where neither is the
    matter.
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


def bound_text(verdict: Bottleneck) -> str:
    """As in "rollout-bound", "stalled"; "" where it is not told."""
    bound = verdict.bound_by or ""
    return f"{bound}-bound" if bound not in {"", "stalled"} else bound
