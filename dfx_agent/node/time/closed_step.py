"""A finished step of one process, with all that was measured in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfx_agent.facts.steps import GroupTime, SchedTimes
from dfx_agent.node.time.account import StepInterval
from dfx_agent.node.time.work import ClosedWork


@dataclass
class ClosedStep:
    """A step that one process has finished."""

    window: StepInterval
    # tokens of the step by kind, for example "prompt"
    tokens: dict[str, float] = field(default_factory=dict)
    num_forward_tokens: float | None = None
    # CPU time of the training thread, measured by the guest
    busy_seconds: float | None = None
    num_samples: float | None = None  # rows of forward passes for training
    # CPU time and time spent runnable without a CPU, as the kernel counts them
    processor: SchedTimes | None = None
    groups: Mapping[str, GroupTime] = field(default_factory=dict)
    work: ClosedWork | None = None
