"""Builds the input of the bottleneck judge for one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dfx_agent.facts.pipeline import LabeledMetric, PipelineFacts, ProcessTime
from dfx_agent.snapshot import EngineFacts, RankRow, ScalarRow, StepRow, Verdict
from dfx_agent.wire.records import CODE_COUNTER

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
