"""A poll describes only those ranks again that have recorded something since the poll before."""

from __future__ import annotations

import pytest
from guard_scene import Job

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.agent.local_run import LocalRun
from dfx_agent.agent.run_facts import RunReporter


@pytest.fixture
def jobs(dfx_dir):
    return [Job(dfx_dir, "r", rank) for rank in (0, 1)]


@pytest.fixture
def agent(dfx_dir, jobs):
    agent = Agent(Config(str(dfx_dir)), reap=False)
    for step in (1, 2, 3):
        for job in jobs:
            job.passes(step)
        agent.poll()
    for _ in range(2):  # until a poll of an idle rank is short
        agent.poll()
    return agent


def run_of(agent: Agent) -> LocalRun:
    return agent._runs["r"]


def test_a_rank_without_records_is_not_described_again(agent, jobs):
    before = run_of(agent).facts.ranks["trainer"]
    jobs[0].passes(4)
    agent.poll()
    busy, idle = run_of(agent).facts.ranks["trainer"]
    assert idle is before[1]
    assert busy is not before[0]
    assert busy.reported_step == 4


def test_a_hub_gets_ranks_as_they_are_at_the_poll(agent):
    before = run_of(agent).facts.ranks["trainer"]
    agent.poll()
    run = run_of(agent)
    assert run.facts.ranks["trainer"][1] is before[1]
    now = RunReporter("node").facts(run, is_full=True).ranks["trainer"]
    num_still = [track.num_still for track in run.tracks]
    assert [rank.num_still for rank in now] == num_still
    assert [rank.num_still for rank in before] != num_still
