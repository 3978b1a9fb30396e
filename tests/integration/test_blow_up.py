"""A torch job of a few milliseconds a step whose loss blows up: found and paged, marked or not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import job_environment, running, until, unused_port

JOB = str(Path(__file__).parent / "jobs" / "blown_up.py")
BLOW_UP_STEP, STEP_SECONDS = 150, "0.002"
PAGE = "DfxTrainingDivergence"


def incident(agent):
    assert agent.process.popen.poll() is None, agent.process.errors
    found = [item for run in agent.snapshot()["runs"] for item in run["incidents"]]
    return next((item for item in found if item["kind"] == "divergence"), None)


@pytest.mark.parametrize("marks", [[], ["marked"]], ids=["plain", "marked"])
def test_it_is_found_by_its_size_and_paged_although_its_steps_are_short(tmp_path, marks):
    """The state lasts some 70 steps, a fifth of a second; alerts are looked at every 5 s."""
    environment = job_environment(DFX_DIR=str(tmp_path / "segments"))
    command = [sys.executable, JOB, STEP_SECONDS, *marks]
    with running(tmp_path, unused_port(), command, environment) as agent:
        found = until(lambda: incident(agent), "the blow-up is found", 90)
        assert found["state"] == "found"
        assert BLOW_UP_STEP <= found["step"] <= BLOW_UP_STEP + 5
        reported = (
            r"Training (has been|was) diverging since step \d+: .*loss (is|was) far .* its baseline"
        )
        assert re.match(reported, found["summary"]), "it may be over when it is read"
        assert found["cause"].startswith("loss first: it blew up")

        def paged():
            reported = agent.json("/api/v1/alerts")["alerts"]
            return [
                row for row in reported if (row["alert"], row["severity"]) == (PAGE, "critical")
            ]

        (page,) = until(paged, "it is paged", 30)
        until(lambda: paged()[0]["sentence"] == incident(agent)["sentence"], "one sentence", 30)
        assert "Loss first: it blew up" in page["sentence"]
        done = subprocess.run(
            [sys.executable, "-m", "dfx_agent", "diagnose", "--url", agent.url],
            check=False, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (1, "")
        result = re.search(r"found: Training (has been|was) diverging since step", done.stdout)
        assert result, done.stdout
