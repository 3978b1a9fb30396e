"""Rollout engines of a real job: found by their command lines, joined to the run, shown."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import scripted_engine
from live_processes import demo_environment, running, until, unused_port
from scripted_page import CHROMIUM_FLAGS, texts

JOB = Path(__file__).parent / "jobs" / "served_rollouts.py"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    return demo_environment(DFX_DIR=str(folder / "segments"), TMPDIR=str(folder))


@pytest.fixture(scope="module")
def agent(environment):
    folder = Path(environment["TMPDIR"])
    program = folder / "vllm"
    shutil.copy(scripted_engine.__file__, program)
    first, second = sorted(unused_port() for _ in range(2))
    command = [sys.executable, str(JOB), str(program), f"{first},4,0", f"{second},0,40"]
    with running(folder, unused_port(), command, environment) as agent:
        agent.ports = first, second
        until(lambda: len([e for e in engines(agent) if e["busy_ratio"] is not None]) == 2,
              "two engines, each read twice", 90)  # fmt: skip
        yield agent


def engines(agent):
    return [
        e for run in agent.snapshot()["runs"] for e in (run["engines"] or {}).get("replicas", ())
    ]


@pytest.mark.smoke
def test_they_are_replicas_of_the_run_in_the_order_of_their_addresses(agent):
    (run,) = agent.snapshot()["runs"]
    rows = run["engines"]["replicas"]
    assert [row["replica"] for row in rows] == ["0", "1"]
    assert [row["url"] for row in rows] == [f"http://127.0.0.1:{p}/metrics" for p in agent.ports]
    assert {(row["engine"], row["model"], row["origin"]) for row in rows} == {
        ("vllm", "a-model", "command line")
    }
    assert [row["gauges"]["running_requests"] for row in rows] == [4.0, 0.0]
    assert run["engines"]["spreads"]["waiting_requests"] == {
        "min": 0.0, "median": 20.0, "max": 40.0, "num": 2,
    }  # fmt: skip


@pytest.mark.smoke
def test_metrics_have_each_replica_and_its_histograms(agent):
    text = agent.get("/metrics")
    for replica, waiting in (("0", "0.0"), ("1", "40.0")):
        labels = rf'run="it",node="[^"]*",replica="{replica}",dp_rank=""'
        assert re.search(
            rf"^dfx_engine_waiting_requests{{{labels}}} {waiting}$", text, re.MULTILINE
        )
        assert re.search(rf"^dfx_engine_up{{{labels}}} 1.0$", text, re.MULTILINE)
        name = "dfx_engine_time_to_first_token_seconds_bucket"
        found = re.search(rf'^{name}{{{labels},le="0.25"}} ([0-9.]+)$', text, re.MULTILINE)
        assert float(found[1]) > 0
    assert "# TYPE dfx_engine_time_to_first_token_seconds histogram" in text


def test_they_are_targets_for_prometheus(agent):
    groups = agent.json("/api/v1/engines/targets")
    assert [group["targets"] for group in groups] == [[f"127.0.0.1:{p}"] for p in agent.ports]
    labels = groups[1]["labels"]
    assert (labels["run"], labels["role"], labels["replica"]) == ("it", "rollout", "1")
    assert (labels["__scheme__"], labels["__metrics_path__"]) == ("http", "/metrics")


def test_diagnose_says_who_stands_out(agent, environment, run_cli):
    reported = run_cli("diagnose", env=environment).stdout
    assert "engine: replica 1 has 40 requests waiting, the median of the others 0" in reported


def test_the_page_has_a_table_of_them(agent, chromium_binary):
    playwright_api = pytest.importorskip(
        "playwright.sync_api", reason="no playwright; pip install playwright", exc_type=ImportError
    )
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_binary, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(agent.url)
        page.wait_for_selector("#engine-rows tr")
        rows = texts(page, "#engine-rows tr")
        note = texts(page, "#engine-notes li")
        artifacts = Path(os.environ.get("DFX_TEST_ARTIFACTS", "tests/artifacts"))
        artifacts.mkdir(parents=True, exist_ok=True)
        page.locator("#engines").screenshot(path=str(artifacts / "engines.png"))
        browser.close()
    assert len(rows) == 3
    assert rows[1].split()[:4] == ["1", "up", "0", "40"]
    assert "0 · 20 · 40" in rows[2]
    assert note == ["replica 1 has 40 requests waiting, the median of the others 0"]


def test_one_that_dies_is_gone_and_the_other_is_not(agent, environment, run_cli):
    """The last test: one engine is killed."""
    os.kill(engines(agent)[1]["pid"], signal.SIGKILL)
    until(lambda: engines(agent)[1]["state"] == "gone", "the second engine is gone")
    first, second = engines(agent)
    assert (first["state"], second["gauges"]["waiting_requests"]) == ("up", 40.0)
    assert re.search(r'^dfx_engine_up{.*replica="1".*} 0.0$', agent.get("/metrics"), re.MULTILINE)
    reported = run_cli("diagnose", env=environment).stdout
    assert f"engine: replica 1 (http://127.0.0.1:{agent.ports[1]}/metrics) is gone" in reported
