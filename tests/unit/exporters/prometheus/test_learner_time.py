"""The time of a learner's iteration, from the guest's records to /metrics, in three situations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from job_scene import Job
from prometheus_page import samples

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.catalogue.learner_time import COLLECTOR_PARTS, LEARNER_PARTS
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.wire.records import STAGE, STEP, WAIT

# an iteration has 1000 of these: 10 ms
UNIT_NS = 10_000
Spans = list[tuple[int, str, int, int]]  # kind, name, begin, end
Parts = dict[str, dict[str, float]]  # rank -> part -> seconds

TRAINED: Spans = [(STAGE, "actor_update", 600, 800), (STAGE, "weight_sync", 850, 900)]
LATE_COLLECTOR: Spans = [(WAIT, "collector", 0, 500), *TRAINED]
PREFETCH_HIT: Spans = [(WAIT, "collector", 0, 10), *TRAINED]
BATCH_NOT_READY: Spans = [
    (WAIT, "collector", 0, 10),
    (WAIT, "replay_batch", 10, 410),
    (STAGE, "h2d", 410, 450),
    *TRAINED,
]
AT_THE_BARRIER: Spans = [
    (WAIT, "collector", 0, 10),
    (WAIT, "barrier", 10, 310),
    (STAGE, "param_sync", 500, 600),
    *TRAINED,
    (WAIT, "sync_coordination", 810, 840),
    (WAIT, "barrier", 900, 1000),
]
COLLECTED: Spans = [
    (STAGE, "weight_sync", 0, 50),
    (WAIT, "sync_coordination", 50, 60),
    (WAIT, "policy", 60, 360),
    (STAGE, "env_step", 360, 860),
    (STAGE, "replay", 860, 900),
]


def page(folder: Path, ranks: Mapping[int, Spans], role: str = "learner") -> dict:
    """A scrape after each rank has closed an iteration of its spans."""
    jobs = []
    for rank, spans in ranks.items():
        job = Job(folder, rank, role=role, framework="unilab")
        begin = time.monotonic_ns()
        job.segment.emit(begin, begin, 0.0, 1, 0, 0, 0, STEP, 0)
        for number, (kind, name, first, last) in enumerate(spans, 1):
            times = begin + first * UNIT_NS, begin + last * UNIT_NS
            job.segment.emit(*times, 0.0, 1, number, 0, 1, kind, job.name(name))
        end = begin + 1000 * UNIT_NS
        job.segment.emit(end, end, 0.0, 2, 0, 0, 0, STEP, 0)
        while time.monotonic_ns() <= end:  # nothing is accounted that lies ahead
            time.sleep(0.001)
        jobs.append(job)
    agent = Agent(Config(str(folder)))
    for _ in range(3):
        agent.poll()
    found = samples(PrometheusExporter(agent))
    for job in jobs:
        job.segment.finish()
        job.segment.close()
    agent._folder.close()
    return found


def by_part(scrape: dict, name: str) -> Parts:
    parts: Parts = {}
    for labels, seconds in scrape[name]:
        parts.setdefault(labels["rank"], {})[labels["part"]] = seconds
    return parts


def units(spans: Spans) -> dict[str, float]:
    """What the parts should be, in seconds."""
    names = {"collector": "collector_wait", "replay_batch": "replay_batch_wait"}
    names |= {"barrier": "rank_barrier", "actor_update": "train"}
    expected = dict.fromkeys(LEARNER_PARTS, 0.0)
    for _, name, first, last in spans:
        expected[names.get(name, name)] += (last - first) * UNIT_NS / 1e9
    return expected | {"other": 1000 * UNIT_NS / 1e9 - sum(expected.values())}


@pytest.mark.parametrize(
    "spans", [LATE_COLLECTOR, PREFETCH_HIT, BATCH_NOT_READY], ids=["collector", "hit", "batch"]
)
def test_one_device(spans, dfx_dir):
    scrape = page(dfx_dir, {0: spans})
    parts = by_part(scrape, "dfx_rank_learner_seconds")["0"]
    assert parts == pytest.approx(units(spans))
    assert parts["rank_barrier"] == parts["param_sync"] == 0
    ((_, wall),) = scrape["dfx_rank_step_seconds"]
    assert wall == pytest.approx(1000 * UNIT_NS / 1e9)
    ((_, pipeline),) = scrape["dfx_rank_learner_pipeline_seconds"]
    assert pipeline == pytest.approx(parts["h2d"] + parts["train"] + parts["weight_sync"])


def test_several_devices_wait_at_the_barrier_alone(dfx_dir):
    """Rank 1 is waited for; the ranks' numbers are their own, and are not merged."""
    scrape = page(dfx_dir, {0: AT_THE_BARRIER, 1: BATCH_NOT_READY})
    parts = by_part(scrape, "dfx_rank_learner_seconds")
    assert parts == {
        "0": pytest.approx(units(AT_THE_BARRIER)),
        "1": pytest.approx(units(BATCH_NOT_READY)),
    }
    assert parts["0"]["rank_barrier"] == pytest.approx(0.4 * 1000 * UNIT_NS / 1e9)  # both
    assert parts["0"]["collector_wait"] == pytest.approx(0.01 * 1000 * UNIT_NS / 1e9)
    assert parts["1"]["rank_barrier"] == 0


def test_the_collector_has_times_of_its_own(dfx_dir):
    scrape = page(dfx_dir, {0: COLLECTED}, role="collector")
    assert "dfx_rank_learner_seconds" not in scrape
    parts = by_part(scrape, "dfx_rank_collector_seconds_total")["0"]
    assert parts.keys() == set(COLLECTOR_PARTS)
    expected = {"weight_sync": 50, "sync_coordination": 10, "action_select": 300}
    expected |= {"env_step": 500, "replay": 40}
    for part, length in expected.items():
        assert parts[part] == pytest.approx(length * UNIT_NS / 1e9), part


def test_who_is_no_learner_has_no_such_series(dfx_dir):
    scrape = page(dfx_dir, {0: [(STAGE, "rollout", 0, 500)]}, role="trainer")
    assert scrape["dfx_rank_step_seconds"]
    assert not {name for name in scrape if "learner" in name or "rank_collector" in name}
