"""Jobs that end under ``dfx-agent run``, seen by a real Prometheus with the shipped rules."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest
from live_processes import DFX_AGENT, demo_environment, running, started, until, unused_port
from test_prometheus import Prometheus

ABOUT_AGENTS = 'ALERTS{alertname=~"DfxRunVanished|DfxAgentDown"}'
JOB = """
import os, sys, time
import dfx_agent.shim as dfx
dfx.init(role="trainer")
while not os.path.exists(sys.argv[1]):
    dfx.set_step(1)
    with dfx.stage("rollout"):
        time.sleep(0.05)
"""


@pytest.fixture
def scene(prometheus_binary, tmp_path):
    """(a client of Prometheus, the agent's port, the environment of the job)."""
    port, agent_port = unused_port(), unused_port()
    assets = tmp_path / "assets"
    made = subprocess.run(
        [*DFX_AGENT, "assets", str(assets)], check=False, capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    config = assets / "prometheus.yml"
    text = config.read_text().replace("127.0.0.1:9931", f"127.0.0.1:{agent_port}")
    config.write_text(text.replace(": 5s", ": 1s"))
    command = [
        prometheus_binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with started(command, tmp_path) as process:
        prometheus = Prometheus(process, port)
        until(prometheus.is_ready, "Prometheus is ready")
        yield prometheus, agent_port, demo_environment(DFX_DIR=str(tmp_path / "segments"))


@contextmanager
def observed_job(scene, folder):
    """(the agent, a function that ends the job); it has been scraped twice."""
    prometheus, port, env = scene
    end = folder / "end"
    with running(folder, port, [sys.executable, "-c", JOB, str(end)], env) as agent:
        look = 'count_over_time(dfx_rank_up{role="trainer"}[1m]) >= 2'
        until(lambda: prometheus.query(look), "Prometheus knows the rank")
        yield agent, end.touch


def value(prometheus, query):
    return next((number for _, number in prometheus.query(query)), None)


def test_a_normal_end_is_shown_and_alerts_nobody(scene, tmp_path):
    prometheus = scene[0]
    with observed_job(scene, tmp_path) as (agent, end):
        assert value(prometheus, "dfx_agent_job_ended") == 0
        end()
        assert agent.process.wait() == 0, agent.process.errors
        assert re.search(r"Prometheus may see the end: up to \d+ s", agent.process.errors)
    until(lambda: value(prometheus, 'up{job="dfx"}') == 0, "Prometheus misses the agent")
    assert value(prometheus, "last_over_time(dfx_agent_job_ended[5m])") == 1
    assert value(prometheus, 'last_over_time(dfx_rank_up{role="trainer"}[5m])') == 0
    down = 'count_over_time((up{job="dfx"} == 0)[1m:1s])'
    until(lambda: (value(prometheus, down) or 0) >= 5, "rules were evaluated meanwhile")
    # pending ones are in it as well
    assert prometheus.query(ABOUT_AGENTS) == []


@pytest.mark.smoke
def test_a_lost_node_is_missed(scene, tmp_path):
    prometheus = scene[0]
    with observed_job(scene, tmp_path) as (agent, _):
        agent.kill()
        names = until(
            lambda: (
                len(found := {labels["alertname"] for labels, _ in prometheus.query(ABOUT_AGENTS)})
                == 2
                and found
            ),
            "both alerts are pending",
        )
    assert names == {"DfxRunVanished", "DfxAgentDown"}


def scrape(port):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "text/plain;version=0.0.4"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read().decode()


def quick_job(tmp_path, port, **settings):
    env = demo_environment(DFX_DIR=str(tmp_path / "segments"), **settings)
    end = tmp_path / "end"
    return running(tmp_path, port, [sys.executable, "-c", JOB, str(end)], env), end


def test_a_signal_ends_the_waiting(tmp_path):
    job, end = quick_job(tmp_path, port := unused_port())
    with job as agent:
        scrape(port)
        end.touch()
        until(lambda: "may see the end: up to 60 s" in agent.process.errors, "it waits")
        assert "dfx_agent_job_ended 1" in agent.get("/metrics"), "a person's look is no scrape"
        time.sleep(0.3)
        assert agent.process.popen.poll() is None
        agent.process.send(signal.SIGTERM)
        assert agent.process.wait(20) == 0


@pytest.mark.parametrize(
    ("settings", "is_scraped"), [({}, False), ({"DFX_LINGER_SECONDS": "0"}, True)]
)
def test_nobody_waits_without_a_scraper_or_when_it_is_switched_off(tmp_path, settings, is_scraped):
    job, end = quick_job(tmp_path, port := unused_port(), **settings)
    with job as agent:
        agent.get("/metrics")
        if is_scraped:
            scrape(port)
        end.touch()
        assert agent.process.wait(30) == 0
        assert "may see the end" not in agent.process.errors
