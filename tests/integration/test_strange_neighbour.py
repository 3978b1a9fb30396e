"""A hostile run beside a healthy one costs only itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from live_processes import (
    HERE,
    demo_environment,
    job_environment,
    serving,
    started,
    until,
    unused_port,
)
from prometheus_client.parser import text_string_to_metric_families
from scripted_page import GREEN

from dfx_agent.agent.stored.baselines import FOLDER, _name
from dfx_agent.node.segments.owned_files import state_directory

HOSTILE = [sys.executable, str(HERE / "hostile_rank.py")]
RANK_LOOP = [sys.executable, str(HERE / "rank_loop.py")]
LATE_SECONDS = 120.0


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

            result = run_cli("diagnose", "--run", "healthy", "--url", agent.url)
            assert (result.returncode, "blind" in result.stdout) == (0, False), result.stdout
            for run in ("healthy", "strange"):
                page = open_page(f"{agent.url}/?#run={run}")
                page.wait_for_selector("#rank-rows tr")
                assert page.evaluate(GREEN) == []
        assert hostile.popen.poll() is None, hostile.errors
