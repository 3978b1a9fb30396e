"""A job that compiles does the same with the guest as without: no warning, no other graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import job_environment

from dfx_agent.attach.payload import write_preload_folder

JOB = str(Path(__file__).parent / "jobs" / "compiling.py")
CASES = [
    ("module", "first"),
    ("module", "listening"),
    ("module", "hooked"),
    ("module", "between"),
    ("function", "listening"),
    ("part", "listening"),
]

RUN_SECONDS = 600  # against a job without an end; says nothing about speed


def run(how: str, when: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-W", "error::UserWarning", JOB, how, when]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(2 * RUN_SECONDS + 60)
@pytest.mark.parametrize(("how", "when"), CASES)
def test_a_compiled_job_does_the_same(how: str, when: str, dfx_dir: Path, tmp_path: Path) -> None:
    alone = run(how, when, job_environment())
    preload = write_preload_folder(str(tmp_path))
    observed = job_environment(
        DFX_AGENT="1", DFX_DIR=str(dfx_dir), PYTHONPATH=preload, DFX_TEST_OBSERVED="1"
    )
    assert run(how, when, observed) == alone
