"""A snapshot of one run, and what Prometheus reads of it."""

from __future__ import annotations

import dataclasses

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.snapshot import (
    AgentRow,
    RankRow,
    RunRow,
    Snapshot,
    StepCell,
    StepRow,
    TimeSplit,
)

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
SPLIT = TimeSplit(
    10.0, 6.0, 1.0, {"rollout": 4.0, "reward": 2.0}, {"barrier": {"rollout": 2.0, "": 1.0}}
)
IN_STEP = TimeSplit(stage_seconds={"rollout": 2.0})
CELLS = tuple(StepCell(rank, IN_STEP, {"response": 30.0}) for rank in "01")
STEPS = (StepRow(1, "trainer", 1.0, 3.0, (), 0.25, CELLS),)
FAR_SECONDS = 1e11  # not yet: the age of it is 0 at each scrape


def rank_row(**changes) -> RankRow:
    row = RankRow(
        role="trainer", rank="0", local_rank=None, world_size=None, node="n", pid=1, attempt=0,
        state="live", begin_seconds=1.0, last_event_seconds=None, step=None,
        step_begin_seconds=None, inflight=(), totals=SPLIT, current=TimeSplit(), last=None,
        tokens_total={}, queue_depth={}, policy_version=None, scalars=(), stamps=(),
        num_records=5, num_lost_records=0, num_late_records=0, num_guest_drops=0,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def exporter(
    *ranks: RankRow, run: str = "r", problems=(), verdicts=(), scalars=(), devices=(), **known
) -> PrometheusExporter:
    agent = AgentRow(
        "0", 1, "n", 0.0, 1, 0.0, 1, 5, 0, 0, 0, None, tuple(problems),
        read_seconds=FAR_SECONDS, devices=tuple(devices),
    )  # fmt: skip
    run_row = RunRow(run, "verl", 0, 1.0, ranks, STEPS, scalars, verdicts=tuple(verdicts), **known)
    snapshot = Snapshot(2.0, agent, (run_row,))

    class Source:
        def snapshot(self):
            return snapshot

    return PrometheusExporter(Source())


def samples(page: PrometheusExporter) -> dict[str, list[tuple[dict[str, str], float]]]:
    body, _ = page.render(OPENMETRICS)
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found
