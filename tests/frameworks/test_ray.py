"""Faults of a plain job on a real Ray: one job for all scenes, in the order in which they stand."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from live_processes import (
    DFX_AGENT,
    LiveAgent,
    Started,
    job_environment,
    running,
    serving,
    started,
    until,
    unused_port,
)

pytest.importorskip("ray", reason="no ray; `make test-frameworks` installs it")
pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

JOB = Path(__file__).resolve().parent / "jobs" / "ray_actors.py"
START_SECONDS = 300.0  # against a job that never comes up; says nothing about speed
LATE_SECONDS = 60.0
pytestmark = pytest.mark.timeout(1200)


def command(folder: Path, *num_steps: str) -> list[str]:
    return [sys.executable, str(JOB), str(folder), *num_steps]


def environment(**changes: str) -> dict[str, str]:
    return job_environment(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", **changes)


def wait_for_steps(job: Started) -> None:
    def look() -> bool:
        assert job.popen.poll() is None, job.errors[-4000:]
        return "step 20\n" in job.output

    until(look, "twenty steps", START_SECONDS)
    job.descendants()


class Scene:
    """A job of two workers and a judge, its agent, and what that says."""

    def __init__(self, folder: Path, agent: LiveAgent, env: dict[str, str]) -> None:
        self.folder, self.agent, self._env = folder, agent, env

    def verdicts(self, kind: str) -> dict[str, dict[str, Any]]:
        """By role."""
        found = [v for run in self.agent.snapshot()["runs"] for v in run["verdicts"]]
        return {verdict["role"]: verdict for verdict in found if verdict["kind"] == kind}

    def wait_for(self, kind: str, role: str, state: str, seconds: float = LATE_SECONDS) -> dict:
        def look() -> dict[str, Any] | None:
            verdict = self.verdicts(kind).get(role)
            return verdict if verdict is not None and verdict["state"] == state else None

        return until(look, f"{kind} of {role}: {state}", seconds)

    def states(self, kind: str) -> dict[str, str]:
        return {role: verdict["state"] for role, verdict in self.verdicts(kind).items()}

    def row(self, rank: str) -> dict[str, Any]:
        return self.agent.ranks()[rank]

    def pid(self, role: str, rank: str = "") -> int:
        rows = self.agent.ranks().values()
        return next(r["pid"] for r in rows if r["role"] == role and rank in {"", r["rank"]})

    def cli(self, *words: str) -> str:
        done = subprocess.run(
            [*DFX_AGENT, *words],
            check=False, capture_output=True, text=True, timeout=120, env=self._env,
        )  # fmt: skip
        return done.stdout

    @contextmanager
    def blocked(self, method: str) -> Iterator[None]:
        """Worker 1 waits in this method for an answer, as long as this lasts."""
        block = self.folder / "block"
        with socket.create_server(("127.0.0.1", 0)) as server:
            block.write_text(f"{method} {server.getsockname()[1]}")
            connection, _ = server.accept()
            block.unlink()
            with connection:
                yield


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("ray")
    with tempfile.TemporaryDirectory(prefix="dfx-test-", dir="/dev/shm") as segments:
        env = environment(DFX_DIR=segments)
        with running(folder, unused_port(), command(folder), env) as agent:
            wait_for_steps(agent.process)
            yield Scene(folder, agent, env)


def test_actors_have_rank_role_and_stages(scene: Scene) -> None:
    active = "dfx_rank_stage_active_seconds_total"

    def look() -> bool:
        lines = [line for line in scene.agent.get("/metrics").splitlines() if active in line]
        return all(
            any(f'rank="{rank}"' in line and f'stage="{stage}"' in line for line in lines)
            for rank in (0, 1)
            for stage in ("rollout", "update_actor")
        )

    until(look, "both workers with their stages", LATE_SECONDS)
    rows = scene.agent.ranks()
    assert {rows[rank]["role"] for rank in ("0", "1")} == {"Worker"}
    assert {row["role"] for row in rows.values()} == {"Worker", "Judge", "driver"}


def test_a_worker_blocked_before_a_collective_is_named(scene: Scene) -> None:
    with scene.blocked("update_actor"):
        hang = scene.wait_for("hang", "Worker", "found")
        assert (hang["ranks"], hang["cause"], hang["stage"]) == (["1"], "stuck", "update_actor")
        assert "ask_environment (ray_actors.py:" in hang["summary"]
        assert "found" not in (scene.states("hang")["driver"], scene.states("hang")["Judge"])
    scene.wait_for("hang", "Worker", "clear")


def test_an_actor_blocked_in_rollout_is_named_where_nobody_is_in_a_collective(
    scene: Scene,
) -> None:
    with scene.blocked("rollout"):
        hang = scene.wait_for("hang", "Worker", "found", 120)
        assert (hang["ranks"], hang["cause"], hang["stage"]) == (["1"], "stuck", "rollout")
        assert "ask_environment (ray_actors.py:" in hang["summary"]
        assert any(line.startswith("rank 0: idle") for line in hang["evidence"]), hang
        assert "found" not in (scene.states("hang")["driver"], scene.states("hang")["Judge"])
    scene.wait_for("hang", "Worker", "clear")


def test_a_suspended_actor_is_reported_while_the_driver_waits(scene: Scene) -> None:
    pid = scene.pid("Judge")
    os.kill(pid, signal.SIGSTOP)
    try:
        hang = scene.wait_for("hang", "Judge", "found")
        assert hang["cause"] == "stopped"
        assert hang["action"] == f"Run `kill -CONT {pid}` to resume it."
        assert "found" not in (scene.states("hang")["driver"], scene.states("hang")["Worker"])
        assert "suspended" in scene.cli("ps")
    finally:
        os.kill(pid, signal.SIGCONT)
    scene.wait_for("hang", "Judge", "clear")
    until(lambda: not scene.row(f"p{pid}")["is_suspended"], "it runs", LATE_SECONDS)


def test_a_killed_actor_is_named_and_not_the_driver_that_failed_for_it(scene: Scene) -> None:
    """The last one: the job ends with it, and the agent of ``run`` soon after."""
    os.kill(scene.pid("Worker", "1"), signal.SIGKILL)
    crash = scene.wait_for("crash", "Worker", "found")
    assert crash["ranks"] == ["1"]
    assert "killed by signal 9" in crash["summary"]
    assert "found" not in (scene.states("crash")["driver"], scene.states("crash")["Judge"])
    assert scene.agent.process.wait() != 0
    lines = [line for line in scene.agent.process.errors.splitlines() if "crash found: " in line]
    assert len(lines) == 1, lines
    assert "crash found: Rank 1 was killed by signal 9" in lines[0]


@pytest.mark.parametrize("how", ["serve", "attach"])
def test_a_job_that_ends_normally_has_not_crashed(
    how: str, tmp_path: Path, dfx_dir: Path, free_port: Callable[[], int]
) -> None:
    env = environment(DFX_AGENT="1") if how == "serve" else environment()
    with started(command(tmp_path, "1000"), tmp_path, env) as job:
        wait_for_steps(job)
        port = free_port()
        observing = serving(tmp_path, port) if how == "serve" else attached(job, port, tmp_path)
        with observing as agent:
            scene = Scene(tmp_path, agent, env)
            until(lambda: {"0", "1"} <= agent.ranks().keys(), "both workers", LATE_SECONDS)
            assert job.wait(START_SECONDS) == 0, job.errors
            seen = set()

            def has_ended() -> bool:
                seen.update(scene.states("crash").values())
                return all(row["state"] != "live" for row in agent.ranks().values())

            until(has_ended, "the end of all", LATE_SECONDS)
            scene.wait_for("crash", "Worker", "clear")
            assert "found" not in seen


@contextmanager
def attached(job: Started, port: int, folder: Path) -> Iterator[LiveAgent]:
    words = [*DFX_AGENT, "attach", "--listen", f"127.0.0.1:{port}", "--pid", str(job.pid)]
    with started(words, folder, environment()) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        yield agent
