"""Time in which a trainer waits for the answer of a server is a wait, by `run` and by `attach`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import DFX_AGENT, Started, job_environment, started, until

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.attach.payload import write_preload_folder
from dfx_agent.snapshot import StepRow

JOB = str(Path(__file__).parent / "jobs" / "asking_trainer.py")
ANSWER_SECONDS = 0.3
ENOUGH_STEPS = 12


class Rewards(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(ANSWER_SECONDS)
        body = str(1 / (1 + int(self.path[1:]))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Rewards) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Job:
    """A trainer that runs until it is told."""

    def __init__(self, process: Started, folder: Path) -> None:
        self.process, self._folder = process, folder

    @property
    def num_steps(self) -> int:
        steps = self._folder / "steps"
        return int(steps.read_text()) if steps.exists() else 0

    def run_until(self, num_steps: int) -> None:
        until(lambda: self.num_steps >= num_steps, f"{num_steps} steps", 90)

    def end(self) -> dict[str, Any]:
        """What it says of itself."""
        (self._folder / "stop").touch()
        assert self.process.wait(60) == 0, self.process.errors
        assert self.process.errors == ""
        return json.loads(self.process.output.splitlines()[-1])


@contextmanager
def trainer(url: str, folder: Path, **environment: str) -> Iterator[Job]:
    folder.mkdir()
    command = [sys.executable, JOB, url, str(folder)]
    with started(command, folder, job_environment(**environment)) as process:
        yield Job(process, folder)


@pytest.fixture(scope="module")
def alone(url: str, tmp_path_factory) -> dict[str, Any]:
    """The same job without us."""
    with trainer(url, tmp_path_factory.mktemp("alone") / "job") as job:
        job.run_until(ENOUGH_STEPS)
        return job.end()


@contextmanager
def following(folder: Path) -> Iterator[Agent]:
    agent = Agent(Config(directory=str(folder)))
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def rows(agent: Agent) -> list[StepRow]:
    return [row for run in agent.snapshot().runs for row in run.steps]


def enough(agent: Agent) -> list[StepRow]:
    """Closed steps, once there are some."""
    closed = rows(agent)
    return closed if len(closed) > 5 else []


def check_times(rows: list[StepRow], seconds: list[float]) -> None:
    """Each answer, by the clock of the job, lies in one step: a wait, and next to nothing idle."""
    assert len(rows) >= 3
    shares, idle = [], []
    for row in rows:
        (cell,) = row.cells
        (remote,) = cell.split.wait_seconds["remote"].values()
        assert ANSWER_SECONDS <= remote <= seconds[row.step - 1]
        shares.append(remote / seconds[row.step - 1])
        idle.append(cell.split.idle_seconds)
    # the rest: what urllib does before it waits and after, and the loop of the job
    assert median(shares) > 0.8
    assert median(idle) < 0.3 * ANSWER_SECONDS


def same(losses: list[str], alone: dict[str, Any]) -> bool:
    both = min(len(losses), len(alone["losses"]))
    return both >= ENOUGH_STEPS - 1 and losses[:both] == alone["losses"][:both]


def test_a_trainer_that_was_started_with_us(url, alone, dfx_dir, tmp_path):
    preload = write_preload_folder(str(tmp_path))
    armed = {"DFX_AGENT": "1", "PYTHONPATH": preload}
    with following(dfx_dir) as agent, trainer(url, tmp_path / "job", **armed) as job:
        job.run_until(ENOUGH_STEPS)
        seen = until(lambda: enough(agent), "steps are seen", 60)
        result = job.end()
    assert same(result["losses"], alone)
    check_times(seen, result["seconds"])


def test_a_trainer_that_we_came_to_and_left(url, alone, dfx_dir, tmp_path):
    with following(dfx_dir) as agent, trainer(url, tmp_path / "job") as job:
        job.run_until(2)
        verb(job, "attach", "--inject-only")
        seen = until(lambda: enough(agent), "steps are seen", 60)
        verb(job, "detach")
        job.run_until(max(ENOUGH_STEPS, job.num_steps + 2))
        result = job.end()
    assert result["is_as_it_was"]
    assert same(result["losses"], alone)
    check_times(seen[1:], result["seconds"])  # in the first one we came


def verb(job: Job, name: str, *options: str) -> None:
    command = [*DFX_AGENT, name, "--pid", str(job.process.pid), *options]
    done = subprocess.run(command, env=job_environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
