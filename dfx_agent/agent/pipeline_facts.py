"""The pipeline of one run as its judge is given it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dfx_agent.facts.pipeline import PipelineFacts, ProcessTime, Told
from dfx_agent.snapshot import EngineFacts, RankRow, ScalarRow, StepRow, Verdict

NUM_STEPS = 16


def pipeline_facts(
    steps: Sequence[StepRow],
    ranks: Iterable[RankRow],
    engines: Sequence[EngineFacts],
    scalars: Iterable[ScalarRow],
    verdicts: Iterable[Verdict],
    now_seconds: float,
) -> PipelineFacts:
    """``steps``: the newest ``NUM_STEPS`` of every role."""
    return PipelineFacts(
        now_seconds=now_seconds,
        steps=tuple(steps),
        processes=tuple(
            ProcessTime(r.role, r.rank, r.pid, r.totals, r.inflight, r.event_loop)
            for r in ranks
            if r.source == "guest" and r.state in ("live", "unknown")
        ),
        engines=tuple(engines),
        told={
            Told(row.metric, tuple(sorted(row.labels.items()))): row.moments.mean
            for row in scalars
            if row.metric and row.moments.count
        },
        verdicts=tuple(verdicts),
    )
