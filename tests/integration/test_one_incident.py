"""One incident is the same everywhere: page, API, diagnose, ps, /metrics, and what people get."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from alert_receivers import Hook, hooked
from live_processes import DFX_AGENT, LiveAgent, started, until, unused_port
from prometheus_client.parser import text_string_to_metric_families

from dfx_agent.agent.stored import incidents as incidents_file
from dfx_agent.node.segments.owned_files import state_directory

JOB = str(Path(__file__).parent / "scripted_job.py")
SLOW_RANK = "2"
LATE_SECONDS = 120.0


@contextmanager
def agent_of(folder: Path, *flags: str) -> Iterator[LiveAgent]:
    """A new agent of the job's folder."""
    port = unused_port()
    serve = [*DFX_AGENT, "serve", "--listen", f"127.0.0.1:{port}", *flags]
    with started(serve, folder) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        yield agent


@contextmanager
def scene(folder: Path) -> Iterator[tuple[LiveAgent, Hook]]:
    """A job of four ranks with a straggler, its agent, and who is told."""
    job = [sys.executable, JOB, "4", SLOW_RANK]
    with (
        hooked() as hook,
        agent_of(folder, "--webhook", hook.url) as agent,
        started(job, folder),
    ):
        yield agent, hook


def run_of(agent: LiveAgent) -> dict:
    return (agent.snapshot()["runs"] or [{"incidents": [], "standing": {"state": ""}}])[0]


def straggler(agent: LiveAgent) -> dict | None:
    """The incident, once the alert on it fires."""
    rows = [row for row in run_of(agent)["incidents"] if row["kind"] == "straggler"]
    return rows[0] if rows and rows[0]["alerts"] else None


def begins(agent: LiveAgent) -> list[tuple[dict, float]]:
    name = "dfx_incident_begin_timestamp_seconds"
    families = text_string_to_metric_families(agent.get("/metrics"))
    return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]


def told(hook: Hook) -> dict | None:
    rows = [alert for body in hook.bodies for alert in body["alerts"]]
    named = [row for row in rows if row["labels"]["alertname"] == "DfxStraggler"]
    return named[0] if named else None


def test_a_straggler_is_one_incident_on_every_surface(dfx_dir, tmp_path, run_cli, open_page):
    with scene(tmp_path) as (agent, hook):
        # nothing is clear before anything was judged
        until(lambda: agent.snapshot()["runs"], "the run", LATE_SECONDS)
        seen = until(lambda: straggler(agent), "the incident", LATE_SECONDS)
        delivered = until(lambda: told(hook), "the webhook", LATE_SECONDS)
        begin, name = seen["since_seconds"], seen["id"]
        assert seen["ranks"] == [SLOW_RANK]
        # on a loaded machine the verdict may abstain for a while: then the alert alone speaks
        now = run_of(agent)
        assert now["standing"]["state"] == min(row["state"] for row in now["incidents"])

        # what people get
        assert delivered["annotations"]["incident"] == name
        assert "Rank 2 makes the other ranks wait" in delivered["annotations"]["description"]
        starts = datetime.fromisoformat(delivered["startsAt"]).timestamp()
        assert starts == pytest.approx(begin, abs=0.001)
        (row,) = [r for r in agent.json("/api/v1/alerts")["alerts"] if r["alert"] == "DfxStraggler"]
        assert (row["incident"], row["since_seconds"]) == (name, begin)
        assert row["since_step"] == seen["step"]

        # the boards
        ((labels, value),) = [r for r in begins(agent) if r[0]["kind"] == "straggler"]
        assert (labels["incident"], labels["rank"]) == (name, SLOW_RANK)
        assert value == pytest.approx(begin, abs=1e-3)
        assert 'state="clear"} 1' not in agent.get("/metrics").split("dfx_run_state{")[1]

        # the terminal
        for verb in ("diagnose", "ps"):
            done = run_cli(verb, "--json", "--url", agent.url)
            (run,) = json.loads(done.stdout)["runs"]
            is_found = run["standing"]["state"] == "found"
            assert done.returncode == (is_found if verb == "diagnose" else 0), done.stderr
            (shown,) = [r for r in run["incidents"] if r["kind"] == "straggler"]
            assert (shown["id"], shown["since_seconds"]) == (name, begin)
            assert (shown["ranks"], run["standing"]["state"]) == ([SLOW_RANK], shown["state"])

        # the page
        page = open_page(agent.url)
        line = page.wait_for_selector(f'#verdict-list > li[data-incident="{name}"]')
        assert float(line.get_attribute("data-since")) == begin
        assert line.get_attribute("data-level") == "warn"
        assert "Rank 2 makes the other ranks wait" in line.inner_text()
        assert f"since step {seen['step']}" in line.inner_text()
        assert page.locator('#verdict-list > li[data-level="good"]').count() == 0
        assert page.is_hidden("#alerts"), "the alert is in the incident's line"

        # and it stays so: many steps later it began when it began
        later = max(row["step"] for row in run_of(agent)["ranks"]) + 25
        until(
            lambda: max(row["step"] for row in run_of(agent)["ranks"]) >= later,
            "25 more steps",
            LATE_SECONDS,
        )
        again = until(lambda: straggler(agent), "the incident", LATE_SECONDS)
        assert (again["id"], again["since_seconds"], again["step"]) == (name, begin, seen["step"])


def test_an_incident_continues_in_the_next_agent(dfx_dir, tmp_path):
    with scene(tmp_path) as (agent, _):
        seen = until(lambda: straggler(agent), "the incident", LATE_SECONDS)
        stored = Path(state_directory(str(dfx_dir)), incidents_file.NAME)
        until(
            lambda: stored.exists() and seen["id"] in stored.read_text(), "it is kept", LATE_SECONDS
        )
        agent.kill()
        with agent_of(tmp_path) as following:
            again = until(lambda: straggler(following), "the incident", LATE_SECONDS)
            for key in ("id", "since_seconds", "step"):
                assert again[key] == seen[key], key
            ((labels, value),) = [r for r in begins(following) if r[0]["kind"] == "straggler"]
            assert labels["incident"] == seen["id"]
            assert value == pytest.approx(seen["since_seconds"], abs=1e-3)
