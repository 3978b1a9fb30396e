"""Processes of small jobs, and what is made to fail of reading them."""

from __future__ import annotations

import time
from pathlib import Path

from dfx_agent.agent.agent import Agent
from dfx_agent.job import fold
from dfx_agent.node.track import Track
from dfx_agent.snapshot import RunRow
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import STAGE, STEP


class Job:
    """One process that passes steps."""

    def __init__(self, folder: Path, run: str, rank: int = 0, role: str = "trainer") -> None:
        identity = Identity(run=run, role=role, rank=rank, world_size=2)
        self.segment = SegmentWriter(str(folder), identity, num_records=1024)
        self.stage = self.segment.add_name("backward")
        self.span = 0

    def passes(self, step: int) -> None:
        now = time.monotonic_ns()
        self.segment.emit(now, now, 0.0, step, 0, 0, 0, STEP, 0)
        self.span += 1
        self.segment.emit(now, now + 1, 0.0, step, self.span, 0, 1, STAGE, self.stage)


def judge_everybody(monkeypatch) -> None:
    """Also ranks that get on, which no judge would look at."""
    monkeypatch.setattr(Track, "needs_check", lambda *_: True)
    monkeypatch.setattr(fold, "may_stand", lambda _: True)


def read(agent: Agent, jobs: list[Job], num_times: int = 4) -> dict[str, RunRow]:
    for _ in range(num_times):
        for job in jobs:
            job.passes(job.span + 1)
        agent.poll()
        agent.snapshot()
    return {run.run: run for run in agent.snapshot().runs}


def raising(*_args: object, **_kwargs: object) -> None:
    raise ValueError("strange \udcff")
