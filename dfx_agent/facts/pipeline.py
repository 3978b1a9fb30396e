"""What is known of a pipeline at one instant: its steps, processes, engines and told numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.snapshot import EngineFacts, EventLoopRow, OpenSpan, StepRow, TimeSplit, Verdict


class ProcessTime(NamedTuple):
    """Where the time of one process went since it began, and what it is in now.

    ``stage_seconds`` is how long a stage lasts, from its begin to its end: the median of its newest
    16. ``queue_depth``: as it told last, by queue. ``code_samples``: number of stack samples by
    place, see shim/code_samples.py.
    """

    role: str
    rank: str
    pid: int
    totals: TimeSplit
    inflight: tuple[OpenSpan, ...] = ()
    event_loop: EventLoopRow | None = None
    stage_seconds: Mapping[str, float] = {}
    queue_depth: Mapping[str, float] = {}
    code_samples: Mapping[str, float] = {}


class Told(NamedTuple):
    """A metric of the catalogue with its labels, sorted."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """Of one run on one node, as of Unix time ``now_seconds``.

    ``steps``: the newest that are closed, of all roles, oldest first. ``told``: the newest numbers
    that frameworks tell, the mean over who tells them. ``verdicts``: what others conclude.
    """

    now_seconds: float
    steps: tuple[StepRow, ...] = ()
    processes: tuple[ProcessTime, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    told: Mapping[Told, float] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
