"""Builds the input of the bottleneck judge for one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.snapshot import (
    EngineFacts,
    EventLoopRow,
    OpenSpan,
    RankRow,
    ScalarRow,
    StepRow,
    TimeSplit,
    Verdict,
)
from dfx_agent.wire.records import CODE_COUNTER


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


# number of latest steps of each role; steps may last milliseconds
NUM_STEPS = 200
# stages whose duration is needed for each process
STAGES = frozenset({"rollout", "reward", "tool", "environment"})


def pipeline_facts(
    steps: Sequence[StepRow],
    ranks: Iterable[RankRow],
    engines: Sequence[EngineFacts],
    scalars: Iterable[ScalarRow],
    verdicts: Iterable[Verdict],
    stage_seconds: Mapping[tuple[str, str], Mapping[str, float]],
    now_seconds: float,
) -> PipelineFacts:
    """``steps``: the last ``NUM_STEPS`` of every role. ``stage_seconds``: by (role, rank)."""
    return PipelineFacts(
        now_seconds=now_seconds,
        steps=tuple(steps),
        processes=tuple(
            _process_time(row, stage_seconds.get((row.role, row.rank), {}))
            for row in ranks
            if row.source == "guest" and row.state in ("live", "unknown")
        ),
        engines=tuple(engines),
        reported={
            LabeledMetric(row.metric, tuple(sorted(row.labels.items()))): row.moments.mean
            for row in scalars
            if row.metric and row.moments.count
        },
        verdicts=tuple(verdicts),
    )


def _process_time(row: RankRow, stage_seconds: Mapping[str, float]) -> ProcessTime:
    return ProcessTime(
        row.role, row.rank, row.pid, row.totals, row.inflight, row.event_loop, stage_seconds,
        row.queue_depth,
        {
            name.removeprefix(CODE_COUNTER): count
            for name, count in row.counters_total.items()
            if name.startswith(CODE_COUNTER)
        },
    )  # fmt: skip
