"""A plain torch job, one family of signals: NaN is found, with rank and step."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import job_environment, running, until, unused_port

JOB = str(Path(__file__).parent / "jobs" / "breaking.py")


def snapshot(port):
    url = f"http://127.0.0.1:{port}/api/v1/snapshot"
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def test_a_loss_that_is_nan_is_found_and_diagnose_ends_with_1(tmp_path):
    port, result = unused_port(), "The loss has been NaN since step"
    environment = job_environment(DFX_DIR=str(tmp_path / "segments"))
    with running(tmp_path, port, [sys.executable, JOB], environment) as agent:

        def found():
            assert agent.process.popen.poll() is None, agent.process.errors
            verdicts = [v for run in snapshot(port)["runs"] for v in run["verdicts"]]
            return next(
                (v for v in verdicts if (v["kind"], v["state"]) == ("divergence", "found")), None
            )

        verdict = until(found, "the verdict", 120)
        assert result in verdict["summary"]
        assert 58 <= verdict["step"] <= 62
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "dfx_agent", "diagnose", "--url", url]
        done = subprocess.run(
            command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, result in " ".join(done.stdout.split())) == (1, True)
