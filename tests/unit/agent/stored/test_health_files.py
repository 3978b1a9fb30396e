"""What the detector has learned, kept in the folder: over agents, damage and age."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from job_scene import Job, run_row

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.agent.stored import baselines as health_files
from dfx_agent.wire.records import SCALAR

ENTROPY = "actor/entropy"


def agent_of(folder: Path) -> Agent:
    return Agent(Config(str(folder), keep_dead_seconds=0.5))


def train(job: Job, steps: range) -> None:
    for step in steps:
        job.step(step)
        job.point(SCALAR, ENTROPY, 0.5 + 0.01 * (step % 3), step)
    job.step(steps.stop)


def kept_files(folder: Path) -> list[Path]:
    return sorted((folder / health_files.FOLDER).iterdir())


@pytest.fixture
def learned(dfx_dir):
    """A folder where an agent has watched 30 steps of run r; (folder, job)."""
    job = Job(dfx_dir)
    train(job, range(1, 31))
    agent = agent_of(dfx_dir)
    assert run_row(agent, polls=3).signals.step == 30
    agent.stop()
    return dfx_dir, job


def test_the_next_agent_continues_where_the_last_one_was(learned):
    folder, job = learned
    agent = agent_of(folder)
    row = run_row(agent)
    assert (row.signals.row, row.signals.step) == (29, 30)
    assert row.signals.signals[0].is_baseline_ready
    train(job, range(31, 33))
    row = run_row(agent, polls=3)
    assert (row.signals.row, row.signals.step, row.num_late_signals) == (31, 32, 0)
    history = agent.signal_history("r", 10)
    assert history.steps == (31, 32)
    agent.stop()


def test_a_killed_agent_has_stored_its_baselines(dfx_dir, monkeypatch):
    monkeypatch.setattr(health_files, "EVERY_SECONDS", 0.0)
    job = Job(dfx_dir)
    train(job, range(1, 31))
    killed = agent_of(dfx_dir)
    run_row(killed, polls=3)
    killed._folder.close()  # all that the kernel does for it: the lock is free again
    agent = agent_of(dfx_dir)
    assert run_row(agent).signals.row == 29
    agent.stop()


def test_files_are_private_whole_and_replaced(learned):
    folder, _ = learned
    (path,) = kept_files(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["run"] == "r"
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 99, "health": {}}', b'{"format": 1, "health": []}',
                b'{"format": 1, "health": {"bank": {"row": null}}}', b"\xff\x00"]
)  # fmt: skip
def test_a_damaged_file_is_reported_and_learned_again(learned, content):
    folder, job = learned
    (path,) = kept_files(folder)
    path.write_bytes(content)
    agent = agent_of(folder)
    train(job, range(31, 34))
    row = run_row(agent, polls=3)
    assert row.signals.step == 33
    (problem,) = agent.snapshot().agent.problems
    assert (problem.kind, problem.path) == ("signals", str(path))
    assert "learning run r again" in problem.message
    agent.stop()
    assert json.loads(path.read_text())["health"]["last_step"] == 33


def test_what_is_too_old_is_not_used(learned):
    folder, _ = learned
    (path,) = kept_files(folder)
    old = time.time() - health_files.KEEP_SECONDS - 60
    os.utime(path, (old, old))
    agent = agent_of(folder)
    row = run_row(agent, polls=3)
    assert row.signals.row == 29, "it has read the ring from its beginning"
    assert len(agent.signal_history("r", 100).steps) == 30
    agent.stop()


def test_files_are_bounded(dfx_dir, monkeypatch):
    monkeypatch.setattr(health_files, "MAX_FILES", 3)
    agent = agent_of(dfx_dir)
    for number in range(5):
        job = Job(dfx_dir, run=f"run {number}/ä")
        train(job, range(1, 4))
        run_row(agent, f"run {number}/ä", polls=3)
    assert len(kept_files(dfx_dir)) <= 4
    agent.stop()


def test_an_operator_resets_one_run_and_no_other_exists(learned):
    folder, _ = learned
    agent = agent_of(folder)
    run_row(agent)
    agent.reset_signals("r")
    assert not run_row(agent, polls=0).signals.signals[0].is_baseline_ready
    with pytest.raises(KeyError):
        agent.reset_signals("nobody")
    agent.stop()


def test_a_second_agent_reads_stored_state_and_writes_nothing(learned):
    folder, job = learned
    first, second = agent_of(folder), Agent(Config(str(folder)), reap=False)
    train(job, range(31, 33))
    before = kept_files(folder)[0].read_bytes()
    assert run_row(second, polls=3).signals.row == 31
    second.stop()
    assert kept_files(folder)[0].read_bytes() == before
    first.stop()


COLLAPSE = {"actor/entropy": 8.0, "critic/score/mean": -1.0}


def collapse(agent: Agent, job: Job) -> bool:
    """Thirty healthy steps, eight of another run: whether the baselines are frozen then."""
    for step in range(1, 39):
        for key, value in COLLAPSE.items():
            healthy_value = 0.5 + 0.01 * (step % 3)
            job.point(SCALAR, key, value if step > 30 else healthy_value, step)
        job.step(step + 1)
    return run_row(agent, polls=3).signals.is_latched


@pytest.mark.parametrize(
    ("thresholds", "is_frozen"), [((), True), ((("divergence_families_with_reward", 3.0),), False)]
)
def test_baselines_freeze_by_the_thresholds_that_the_user_set(dfx_dir, thresholds, is_frozen):
    config = Config(str(dfx_dir), thresholds=thresholds)
    agent, job = Agent(config), Job(dfx_dir)
    assert collapse(agent, job) is is_frozen
    states = {v.kind: v.state for v in run_row(agent).verdicts}
    assert (states["divergence"] == "found") is is_frozen
    agent.stop()


def test_the_next_agent_freezes_by_the_same_thresholds(learned):
    folder, job = learned
    agent = Agent(Config(str(folder), thresholds=(("divergence_families_with_reward", 3.0),)))
    train(job, range(31, 33))
    row = run_row(agent, polls=3)
    assert row.signals.step == 32
    held = agent._runs["r"].judge.health
    assert held._bank._vote.critical is held.critical is agent._critical
    agent.stop()
