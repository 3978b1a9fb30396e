"""A hostile run, and one that cannot be judged, beside a healthy one: each costs only itself."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).parent))
from live_processes import (
    HERE,
    demo_environment,
    job_environment,
    serving,
    started,
    until,
    unused_port,
)
from scripted_page import serve, texts

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.agent.faults import BLIND_AFTER
from dfx_agent.agent.fold import RunFold
from dfx_agent.agent.health_files import FOLDER, _name
from dfx_agent.agent.owned_files import state_directory
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import STAGE, STEP

HOSTILE = [sys.executable, str(HERE / "hostile_rank.py")]
RANK_LOOP = [sys.executable, str(HERE / "rank_loop.py")]
LATE_SECONDS = 120.0
GREEN = """() => {
  const probe = document.createElement("i");
  probe.style.color = "var(--good)";
  document.body.append(probe);
  const good = getComputedStyle(probe).color;
  probe.remove();
  const green = (node) => node.checkVisibility() && ["color", "backgroundColor", "borderLeftColor"]
    .some((part) => getComputedStyle(node)[part] === good);
  return [...document.querySelectorAll("body *")].filter(green).map((node) => node.outerHTML);
}"""


def rank_environment(rank: int) -> dict[str, str]:
    return demo_environment(RANK=str(rank), WORLD_SIZE="2", DFX_RUN="healthy")


def run_of(document: dict, run: str) -> dict | None:
    return next((row for row in document["runs"] if row["run"] == run), None)


def num_steps(agent, run: str) -> int:
    row = run_of(agent.snapshot(), run)
    return max((rank["step"] or 0 for rank in row["ranks"]), default=0) if row else 0


def test_a_hostile_process_costs_a_healthy_job_nothing(dfx_dir, tmp_path, run_cli, open_page):
    baselines = Path(state_directory(str(dfx_dir)), FOLDER)
    with (
        started(HOSTILE, tmp_path) as hostile,
        started(RANK_LOOP, tmp_path, rank_environment(0)),
        started(RANK_LOOP, tmp_path, rank_environment(1)),
    ):
        until(lambda: "ready" in hostile.output or hostile.errors, "its records", LATE_SECONDS)
        assert hostile.errors == ""
        baselines.parent.mkdir(mode=0o700, exist_ok=True)
        baselines.mkdir(mode=0o700, exist_ok=True)
        os.mkfifo(baselines / _name("strange"))
        with serving(tmp_path, unused_port(), env=job_environment()) as agent:
            until(lambda: num_steps(agent, "healthy") >= 4, "4 steps", LATE_SECONDS)
            seen = num_steps(agent, "healthy")
            until(lambda: num_steps(agent, "healthy") >= seen + 2, "it goes on", LATE_SECONDS)
            document = json.loads(agent.get("/api/v1/snapshot"), parse_constant=pytest.fail)
            healthy, strange = (run_of(document, run) for run in ("healthy", "strange"))
            assert (healthy["faults"], healthy["blind"], healthy["incidents"]) == ([], None, [])
            states = {v["kind"]: v["state"] for v in healthy["verdicts"]}
            assert (states["hang"], states["crash"]) == ("clear", "clear")
            # what is strange stands beside it
            assert strange["ranks"][0]["num_late_records"] > 0
            assert strange["standing"]["state"] != "clear"
            refused = " ".join(problem["path"] for problem in document["agent"]["problems"])
            assert "\\udcff" in refused
            assert "strange" in refused, "the FIFO in the place of its baselines"

            alerts = json.loads(agent.get("/api/v1/alerts"), parse_constant=pytest.fail)
            assert alerts["num_errors"] == 0
            assert [row for row in alerts["alerts"] if row["run"] == "healthy"] == []
            assert json.loads(agent.get("/readyz")) == {"status": "ready"}
            families = list(text_string_to_metric_families(agent.get("/metrics")))
            shown = {s.labels["run"] for f in families for s in f.samples if "run" in s.labels}
            assert {"healthy", "strange"} <= shown
            assert all(s.value >= 0 for f in families if f.type == "counter" for s in f.samples)

            said = run_cli("diagnose", "--run", "healthy", "--url", agent.url)
            assert (said.returncode, "blind" in said.stdout) == (0, False), said.stdout
            for run in ("healthy", "strange"):
                page = open_page(f"{agent.url}/?#run={run}")
                page.wait_for_selector("#rank-rows tr")
                assert page.evaluate(GREEN) == []
        assert hostile.popen.poll() is None, hostile.errors


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
    judged = RunFold._straggler

    def fails(fold: RunFold, *words):
        if fold.run == "unjudged":
            raise RuntimeError("no such step")
        return judged(fold, *words)

    monkeypatch.setattr(RunFold, "_straggler", fails)
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
        assert "What is shown of it says nothing about now" in lines
        assert "No problem seen" not in page.inner_text("body")
        assert page.locator('#verdict-list > li[data-level="good"]').count() == 0
        assert page.evaluate(GREEN) == []
        monkeypatch.undo()
        agent.poll()
        until(lambda: "Blind" not in page.inner_text("#verdict-list"), "it sees again")
    agent.stop()
