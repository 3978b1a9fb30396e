"""One strange process costs the hang and crash verdicts of its own role, and no other's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from guard_scene import Job, judge_everybody, raising, read
from hang_scene import Watch

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.judge.hang import judge as hangs
from dfx_agent.node.track import Track
from dfx_agent.snapshot import RunRow, Verdict


@pytest.fixture
def jobs(dfx_dir) -> list[Job]:
    return [Job(dfx_dir, "r", rank, role) for role in ("trainer", "rollout") for rank in (0, 1)]


@pytest.fixture
def agent(dfx_dir) -> Agent:
    return Agent(Config(str(dfx_dir)))


def of_role(run: RunRow, role: str) -> list[Verdict]:
    return [v for v in run.verdicts if v.role == role and v.kind in {"hang", "crash"}]


def strange_rank_of_rollout(method: Callable) -> Callable:
    def strange(track: Track, *args: object, **kwargs: object) -> object:
        is_strange = (track.process.registered_as.role, track.process.label) == ("rollout", "0")
        return raising() if is_strange else method(track, *args, **kwargs)

    return strange


@pytest.mark.parametrize("method", ["facts", "needs_check"])
def test_a_rank_without_facts(agent, jobs, monkeypatch, method):
    judge_everybody(monkeypatch)
    monkeypatch.setattr(Track, method, strange_rank_of_rollout(getattr(Track, method)))
    run = read(agent, jobs)["r"]
    assert [v.state for v in of_role(run, "trainer")] == ["clear", "clear"]
    assert [v.state for v in of_role(run, "rollout")] == ["insufficient evidence"] * 2
    assert all("could not be judged: ValueError at" in v.summary for v in of_role(run, "rollout"))
    (fault,) = run.faults
    assert (fault.part, fault.what) == ("judgement", "what the ranks do (rollout)")
    assert run.judged_seconds["hang"] <= fault.since_seconds + 60
    monkeypatch.undo()
    again = read(agent, jobs, 1)["r"]
    assert [v.state for v in of_role(again, "rollout")] == ["clear", "clear"]
    assert not again.faults


def test_ranks_that_no_judge_can_take_cost_their_role(agent, jobs, monkeypatch):
    role = hangs.Role
    judge_everybody(monkeypatch)
    monkeypatch.setattr(
        hangs, "Role", lambda name, *a: raising() if name == "rollout" else role(name, *a)
    )
    run = read(agent, jobs)["r"]
    assert [v.state for v in of_role(run, "trainer")] == ["clear", "clear"]
    assert [v.state for v in of_role(run, "rollout")] == ["insufficient evidence"] * 2


def test_the_watch_and_its_judge_count_into_the_same_faults(jobs, agent, monkeypatch):
    watch = Watch()
    monkeypatch.setattr(hangs, "Role", raising)
    judge_everybody(monkeypatch)
    agent.poll()
    watch.observe(agent._runs["r"].processes, 1)
    assert {row.what for row in watch.judge.faults.rows("r")} >= {
        "hang (trainer)",
        "crash (rollout)",
    }
