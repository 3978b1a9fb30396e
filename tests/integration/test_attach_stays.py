"""Guests stay while the agent takes its time to come up, and nobody claims what was not done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from live_processes import DFX_AGENT, Started, job_environment, started, until

LOOP = "import time; print('up', flush=True)\nwhile True: time.sleep(0.01)"

# in the place of what takes longest to load; then the real one
SLOW = """
import sys, time
time.sleep({})
sys.path = [path for path in sys.path if path != __file__.rpartition("/")[0]]
sys.path_importer_cache.clear()
del sys.modules["fastapi"]
import fastapi
"""


@pytest.fixture
def target() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", LOOP], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    yield child.pid
    child.kill()
    child.communicate()


def attach(pid: int, folder: Path, load_seconds: float) -> AbstractContextManager[Started]:
    options = ["--pid", str(pid), "--listen", "127.0.0.1:0", "--grace-seconds", "2"]
    (folder / "path").mkdir()
    (folder / "path" / "fastapi.py").write_text(SLOW.format(load_seconds))
    env = job_environment(PYTHONPATH=str(folder / "path"))
    return started([*DFX_AGENT, "attach", *options], folder, env)


def test_guests_stay_while_what_serves_is_loaded(target, dfx_dir, tmp_path) -> None:
    """Longer than their grace: they saw nobody, and the page stayed empty."""
    with attach(target, tmp_path, 8.0) as process:
        until(lambda: "page http" in process.errors, "it serves", 120)
        assert "attached in" in process.errors
        assert len(list(dfx_dir.glob(f"{target}-*.attached"))) == 1
        process.send(signal.SIGINT)
        assert process.wait(60) == 0, process.errors
        assert "has left" not in process.errors
        assert f"pid {target}: detached in" in process.errors


def test_attach_ends_when_another_command_detaches_the_job(target, dfx_dir, tmp_path) -> None:
    with attach(target, tmp_path, 0.0) as process:
        until(lambda: "page http" in process.errors, "it serves", 120)
        detach = [*DFX_AGENT, "detach", "--pid", str(target)]
        assert subprocess.run(detach, env=job_environment(), check=False).returncode == 0
        assert process.wait(60) == 0, process.errors
    end = "detached by another command; no process remains attached, so this command ends"
    assert f"pid {target}: {end}\n" in process.errors
    assert "lost" not in process.errors
    assert "detached in" not in process.errors
    diagnose = [*DFX_AGENT, "diagnose", "--watch", "0"]
    result = subprocess.run(
        diagnose, env=job_environment(), capture_output=True, text=True, check=False
    )
    assert "The job was detached at " in result.stdout, result.stdout
    assert "shutting down" not in result.stdout


def test_a_target_that_was_killed_is_lost(target, dfx_dir, tmp_path) -> None:
    with attach(target, tmp_path, 0.0) as process:
        until(lambda: "page http" in process.errors, "it serves", 120)
        os.kill(target, signal.SIGKILL)
        process.send(signal.SIGINT)
        assert process.wait(60) == 1
        assert f"pid {target}: lost" in process.errors
