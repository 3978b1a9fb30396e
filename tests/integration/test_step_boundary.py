"""A step boundary of 25 phases in a real asyncio process: who held its loop, in which phase.

The case of the field: JSON, a string that is built anew again and again, a fan-out to 256 threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from live_processes import DFX_AGENT, demo_environment, started, until

JOB = str(Path(__file__).parent / "jobs" / "step_boundary.py")
CULPRITS = {
    "serialise": "serialise",
    "concatenate": "concatenate",
    "fan_out": "many threads in count",
}


def diagnose(env: dict[str, str], *args: str) -> str:
    command = [*DFX_AGENT, "diagnose", *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def event_loop(env: dict[str, str]) -> dict[str, Any] | None:
    (run,) = json.loads(diagnose(env, "--json"))["runs"]
    return run["event_loops"][0]["event_loop"] if run["event_loops"] else None


@pytest.fixture
def passed(tmp_path):
    """The environment of a job that has passed its step, and how long each phase took."""
    folder, go = tmp_path / "dfx", tmp_path / "go"
    folder.mkdir(mode=0o700)
    env = demo_environment(DFX_DIR=str(folder), DFX_AGENT="1")
    with started([sys.executable, JOB, str(go)], tmp_path, env) as job:
        until(lambda: list(folder.glob("*.seg")), "a segment")
        until(lambda: event_loop(env), "the loop is found", 60)
        go.touch()
        until(lambda: job.output, f"the step is over: {job.errors}", 120)
        yield env, json.loads(job.output)


def test_each_culprit_is_named_in_its_phase_with_its_seconds(passed):
    env, took = passed
    assert len(took) == 25
    step = event_loop(env)["last_step"]
    assert step["step"] == 1
    phases = {phase["name"]: phase for phase in step["phases"]}
    assert set(phases) - {""} == set(took)
    seconds = [phase["seconds"] for phase in step["phases"]]
    assert seconds == sorted(seconds, reverse=True)
    for name, reported in phases.items():
        if name:
            assert reported["seconds"] == pytest.approx(took[name], rel=0.1, abs=0.05)
            assert reported["late_seconds"] <= reported["seconds"] + 1e-6
    for name, culprit in CULPRITS.items():
        reported = phases[name]
        assert reported["late_seconds"] >= reported["seconds"] / 2, reported
        assert any(culprit in held["name"] for held in reported["holders"]), reported
    text = diagnose(env)
    table = text[text.index("step 1 of orchestrator 0 took") :].splitlines()
    for name in CULPRITS:
        assert any(line.split()[:1] == [name] for line in table), text
