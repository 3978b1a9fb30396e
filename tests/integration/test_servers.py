"""Rollout servers: one that serves is a rank, one that answers no more is told by who waits."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import TORCHRUN, job_environment, running, started, until

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.attach.payload import write_preload_folder
from dfx_agent.judge.hang import behind
from dfx_agent.snapshot import Verdict

JOBS = Path(__file__).parent / "jobs"
SERVER = str(JOBS / "policy_server.py")
TRAINER = str(JOBS / "remote_rollouts.py")


def ask(folder: Path) -> None:
    url = f"http://127.0.0.1:{(folder / 'port').read_text()}/generate"
    with urllib.request.urlopen(urllib.request.Request(url, data=b"prompts")) as answer:
        float(answer.read())


def test_a_process_that_only_serves_is_a_rank_of_role_rollout(dfx_dir, tmp_path, free_port):
    command = [sys.executable, SERVER, str(tmp_path)]
    with running(tmp_path, free_port(), command, job_environment()) as agent:

        def rows() -> list[tuple[str, str]]:
            runs = agent.snapshot()["runs"]
            return [(row["role"], row["state"]) for run in runs for row in run["ranks"]]

        until((tmp_path / "port").exists, "the server listens", 90)
        assert rows() == [], "it has done nothing yet"
        for _ in range(3):
            ask(tmp_path)
        until(lambda: rows() == [("rollout", "live")], "it is a rank")


@contextmanager
def following(folder: Path) -> Iterator[Agent]:
    agent = Agent(Config(directory=str(folder)))
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def hang(agent: Agent) -> Verdict | None:
    verdicts = [v for run in agent.snapshot().runs for v in run.verdicts]
    return next((v for v in verdicts if v.kind == "hang" and v.role == "trainer"), None)


def test_who_waits_for_a_server_that_answers_no_more_is_named(dfx_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(behind, "FLOOR_SECONDS", 15.0)  # 120: the test would take as long
    environment = job_environment(DFX_AGENT="1", PYTHONPATH=write_preload_folder(str(tmp_path)))
    server = [sys.executable, SERVER, str(tmp_path)]
    trainer = [*TORCHRUN, "2", TRAINER, str(tmp_path)]
    steps = tmp_path / "step"
    with (
        started(server, tmp_path, job_environment()),
        started(trainer, tmp_path, environment),
        following(dfx_dir) as agent,
    ):
        until(lambda: steps.exists() and int(steps.read_text()) >= 20, "20 steps", 120)
        quiet = hang(agent)
        assert quiet is None or quiet.state != "found", quiet
        (tmp_path / "hold").touch()

        def named() -> Verdict | None:
            verdict = hang(agent)
            assert verdict is None or verdict.state != "found" or verdict.cause == "no answer"
            return verdict if verdict is not None and verdict.state == "found" else None

        verdict = until(named, "rank 0 is named", 120)
    assert verdict.ranks == ("0",)
    assert verdict.summary.startswith("Rank 0 has waited for an HTTP answer for ")
    assert "A step usually takes " in verdict.summary
    lines = enumerate(Path(TRAINER).read_text().splitlines(), 1)
    line = next(number for number, text in lines if "urlopen(" in text)
    assert f"at fetch_rollouts (remote_rollouts.py:{line})" in verdict.summary
    assert "Rank 1 waits in broadcast for " in verdict.summary
