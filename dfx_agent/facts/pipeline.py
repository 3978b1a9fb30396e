"""What is known about a pipeline at one instant: steps, processes, engines and reported numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.snapshot import EngineFacts, EventLoopRow, OpenSpan, StepRow, TimeSplit, Verdict


class ProcessTime(NamedTuple):
    """Where the time of one process went since its start, and what it does now."""

    role: str
    rank: str
    pid: int
    totals: TimeSplit
    inflight: tuple[OpenSpan, ...] = ()
    event_loop: EventLoopRow | None = None
    stage_seconds: Mapping[str, float] = {}
    """Duration by stage: the median of the latest 16."""
    queue_depth: Mapping[str, float] = {}
    """Last reported depth by queue."""
    code_samples: Mapping[str, float] = {}
    """Number of stack samples by code location, see shim/code_samples.py."""


class LabeledMetric(NamedTuple):
    """A metric of the catalogue with its labels, sorted."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """The pipeline of one run on one node."""

    now_seconds: float
    """Unix time of the facts."""
    steps: tuple[StepRow, ...] = ()
    """The latest closed steps of all roles, oldest first."""
    processes: tuple[ProcessTime, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    reported: Mapping[LabeledMetric, float] = field(default_factory=dict)
    """The latest numbers of frameworks: the mean over the processes that report them."""
    verdicts: tuple[Verdict, ...] = ()
    """Conclusions of other judges."""
