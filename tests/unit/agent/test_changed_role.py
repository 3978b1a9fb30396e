"""A process that turns out to be a trainer leaves nothing behind under the name it had before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from guard_scene import Job, read

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.wire import Identity


def test_no_verdict_speaks_of_a_role_that_nobody_has_any_more(tmp_path: Path):
    """Seen: "straggler (driver): insufficient evidence" for ever, of a job of one trainer."""
    agent, job = Agent(Config(directory=str(tmp_path))), Job(tmp_path, "r")
    alone = Identity(run="r", role="driver", rank=-1, world_size=1)
    job.segment.write_identity(alone)
    read(agent, [job])
    job.segment.write_identity(replace(alone, role="trainer"))
    verdicts = read(agent, [job])["r"].verdicts
    assert {verdict.role for verdict in verdicts if verdict.kind == "hang"} == {"trainer"}
    assert [verdict for verdict in verdicts if verdict.kind == "straggler"] == []
    agent.stop()
