"""unilab-rl's own runner in three situations: what the guest sees is what UniLab measures itself.

Learner, spawned collector and, on two ranks, gloo are real; the replay ring is in host memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from live_processes import job_environment, started

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.catalogue.learner_time import collector_seconds, learner_seconds, pipeline_seconds
from dfx_agent.snapshot import RunRow

pytest.importorskip("uni_rl", reason="no unilab-rl; `make test-frameworks` installs it")

JOB = str(Path(__file__).parent / "jobs" / "unilab_sac.py")
TIMEOUT_SECONDS = 400.0
NUM_ITERATIONS = 6
# what UniLab itself says of the same; the barrier is measured around the function
NATIVE = {
    "collector_wait": "collector_wait_time",
    "replay_batch_wait": "replay_batch_wait_time",
    "rank_barrier": "rank_barrier_time",
    "sync_coordination": "sync_coordination_time",
}
CLOCK_SECONDS = 1e-6


@dataclass(frozen=True)
class Iteration:
    """One of one rank: ``parts`` and ``wall_seconds`` as seen, ``native`` as UniLab measured."""

    parts: Mapping[str, float]
    wall_seconds: float
    native: Mapping[str, float]


@dataclass(frozen=True)
class Learned:
    """``ranks``: of each learner its iterations from the second on, with which steps begin."""

    run: RunRow
    ranks: Mapping[str, list[Iteration]]

    def total(self, rank: str, part: str) -> tuple[float, float]:
        """(as seen, as UniLab measured it), of all iterations."""
        of_rank = self.ranks[rank]
        native = sum(item.native[NATIVE[part]] for item in of_rank)
        return sum(item.parts[part] for item in of_rank), native


def learn(folder: Path, tmp_path: Path, situation: str, world_size: int = 1) -> Learned:
    """Run it, and read what it left."""
    words = [sys.executable, JOB, "--situation", situation, "--iterations", str(NUM_ITERATIONS)]
    words += ["--world-size", str(world_size), "--store", str(tmp_path / "store")]
    with ExitStack() as stack:
        jobs = []
        for rank in range(world_size):
            env = job_environment() | {"DFX_AGENT": "1", "DFX_RUN": "it"}
            if rank:  # as unilab-rl's launcher leaves it
                env |= {"UNILAB_DP_RANK": str(rank), "UNILAB_DP_WORLD_SIZE": str(world_size)}
            jobs.append(stack.enter_context(started([*words, "--rank", str(rank)], tmp_path, env)))
        for job in jobs:
            assert job.wait(TIMEOUT_SECONDS) == 0, job.errors
        reported = [json.loads(job.output.rpartition("MEASURED ")[2]) for job in jobs]
    agent = Agent(Config(str(folder)), reap=False)
    for _ in range(2):
        agent.poll()
    (run,) = agent.snapshot().runs
    return Learned(
        run, {str(rank): _iterations(run, rank, reported[rank]) for rank in range(world_size)}
    )


def _iterations(run: RunRow, rank: int, told: list[dict[str, float]]) -> list[Iteration]:
    found = []
    for row in run.steps:
        for cell in row.cells:
            if (row.role, cell.rank) == ("learner", str(rank)) and row.step <= NUM_ITERATIONS:
                parts = learner_seconds(row.role, cell.split, cell.split)
                assert parts is not None
                found.append(Iteration(parts, cell.split.wall_seconds, told[row.step - 1]))
    assert len(found) == NUM_ITERATIONS - 1
    return found


def check(learned: Learned) -> None:
    """What holds in every situation and on every rank."""
    for rank, iterations in learned.ranks.items():
        for item in iterations:
            assert sum(item.parts.values()) == pytest.approx(item.wall_seconds)
            assert item.wall_seconds >= item.native["iteration_time"] - CLOCK_SECONDS
            assert item.parts["train"] > 0
            assert 0 < pipeline_seconds(item.parts) < item.wall_seconds
            for part, name in NATIVE.items():  # no part has what UniLab has in another one
                assert item.parts[part] <= item.native[name] + CLOCK_SECONDS, (rank, part)
    assert {(r.role, r.rank) for r in learned.run.ranks} == {
        (role, rank) for role in ("learner", "collector") for rank in learned.ranks
    }


def test_a_late_collector_is_collector_wait_alone(dfx_dir, tmp_path):
    learned = learn(dfx_dir, tmp_path, "collector")
    check(learned)
    seen, measured = learned.total("0", "collector_wait")
    assert seen >= 0.8 * measured > 0
    for item in learned.ranks["0"]:  # the batch was there; and one rank meets nobody
        assert item.parts["replay_batch_wait"] == item.parts["rank_barrier"] == 0
        assert item.parts["param_sync"] == item.parts["weight_sync"] == item.parts["h2d"] == 0
    (collector,) = (rank for rank in learned.run.ranks if rank.role == "collector")
    parts = collector_seconds(collector.role, collector.totals)
    assert parts is not None
    assert sum(parts.values()) == pytest.approx(collector.totals.wall_seconds)
    assert parts["env_step"] > 0.1 * NUM_ITERATIONS
    assert min(parts[part] for part in ("action_select", "replay", "sync_coordination")) > 0


def test_a_batch_that_is_not_ready_is_replay_batch_wait(dfx_dir, tmp_path):
    learned = learn(dfx_dir, tmp_path, "batch")
    check(learned)
    seen, measured = learned.total("0", "replay_batch_wait")
    assert seen >= 0.8 * measured >= 0.8 * 0.1 * len(learned.ranks["0"])


def test_a_rank_that_waits_for_another_one_is_at_the_barrier_alone(dfx_dir, tmp_path):
    learned = learn(dfx_dir, tmp_path, "barrier", world_size=2)
    check(learned)
    seen, measured = learned.total("0", "rank_barrier")
    assert seen >= 0.8 * measured > 0
    for iterations in learned.ranks.values():
        assert all(item.parts["param_sync"] > 0 for item in iterations)
