"""The page of an agent that cannot judge a run says since when, and nothing of it is green."""

from __future__ import annotations

import time
from pathlib import Path

from live_processes import until
from scripted_page import GREEN, serve, texts

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.job.judging import JobJudge
from dfx_agent.snapshot.faults import BLIND_AFTER
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import STAGE, STEP


class Judged:
    """One of two ranks of a run that passes steps."""

    def __init__(self, folder: Path, run: str, rank: int) -> None:
        identity = Identity(run=run, role="trainer", framework="verl", rank=rank, world_size=2)
        self.segment = SegmentWriter(str(folder), identity, num_records=512)
        self.name = self.segment.add_name("rollout")
        self.num_steps = 0

    def passes(self) -> None:
        self.num_steps += 1
        now, step = time.monotonic_ns(), self.num_steps
        self.segment.emit(now, now, 0.0, step, 0, 0, 1, STEP, 0)
        self.segment.emit(now, now + 10**5, 0.0, step, step, 0, 1, STAGE, self.name)


def blind_agent(folder: Path, monkeypatch) -> Agent:
    """A real agent of two runs; the judge of stragglers fails for the run "unjudged"."""
    judged = JobJudge._straggler

    def fails(judge: JobJudge, *words):
        if judge.run == "unjudged":
            raise RuntimeError("no such step")
        return judged(judge, *words)

    monkeypatch.setattr(JobJudge, "_straggler", fails)
    jobs = [Judged(folder, run, rank) for run in ("unjudged", "healthy") for rank in (0, 1)]
    agent = Agent(Config(str(folder)), reap=False)
    for _ in range(BLIND_AFTER + 1):
        for job in jobs:
            job.passes()
        agent.poll()
        agent.snapshot()
    return agent


def test_the_page_of_a_blind_agent_says_since_when_and_nothing_is_green(
    dfx_dir, monkeypatch, open_page
):
    agent = blind_agent(dfx_dir, monkeypatch)
    blind = {run.run: run.blind for run in agent.snapshot().runs}
    assert blind["unjudged"] is not None
    assert blind["healthy"] is None
    with serve(agent) as server:
        page = open_page(f"{server.url}/?#run=unjudged")
        page.wait_for_selector("#verdict-list > li[data-level='bad']")
        lines = " ".join(texts(page, "#verdict-list > li"))
        assert "Blind since" in lines
        assert "straggler (trainer) of run unjudged: RuntimeError" in lines
        assert "The values shown for this run are out of date" in lines
        assert "No problem found" not in page.inner_text("body")
        assert page.locator('#verdict-list > li[data-level="good"]').count() == 0
        assert page.evaluate(GREEN) == []
        monkeypatch.undo()
        agent.poll()
        until(lambda: "Blind" not in page.inner_text("#verdict-list"), "it sees again")
    agent.stop()
