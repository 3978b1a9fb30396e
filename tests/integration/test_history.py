"""History survives the agent, and two stored runs say which stage got slower: real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from live_processes import DFX_AGENT, demo_environment, job_environment, started, until

from dfx_agent.exporters.history import folder, stored_run

LOOP = """
import sys, time
import dfx_agent.shim as dfx
dfx.init()
for step in range(1, 31):
    dfx.set_step(step)
    with dfx.stage("rollout"):
        time.sleep(float(sys.argv[1]))
        dfx.tokens("response", 100)
    with dfx.stage("actor_update"):
        time.sleep(0.02)
"""


@pytest.fixture
def runs(dfx_dir: Path, tmp_path: Path) -> Path:
    return tmp_path / "runs"


def stored(runs: Path) -> stored_run.StoredRun | None:
    """The only run that is stored, once it has a step."""
    paths = folder.paths(str(runs)) if runs.exists() else []
    assert len(paths) <= 1
    run = stored_run.load(paths[0]) if paths else None
    return run if run and run.num_steps else None


def steps_in(runs: Path) -> list[int]:
    run = stored(runs)
    return [row.step for row in stored_run.steps_of(run.path)] if run else []


def test_all_steps_are_there_after_the_agent_was_killed_and_started(
    runs: Path, tmp_path: Path
) -> None:
    environment = demo_environment(DFX_HISTORY_DIRECTORY=str(runs))
    demo = ["demo", "--ranks", "1", "--no-browser", "--listen", "127.0.0.1:0"]
    serve = ["serve", "--listen", "127.0.0.1:0"]
    with started([*DFX_AGENT, *demo], tmp_path, environment) as first:
        until(lambda: len(steps_in(runs)) >= 3, "three steps are stored", 120)
        first.descendants()  # the job lives on, and is ended with it
        first.popen.send_signal(signal.SIGKILL)
        first.popen.wait()
        num_before = len(steps_in(runs))
        with started([*DFX_AGENT, *serve], tmp_path, environment) as second:
            until(lambda: len(steps_in(runs)) >= num_before + 3, "three more are stored", 120)
            second.send(signal.SIGTERM)
            second.popen.wait(60)
    run = stored(runs)
    assert run is not None
    assert steps_in(runs) == list(range(1, run.num_steps + 1))
    assert (run.num_agent_starts, run.num_missed_steps) == (2, 0)
    rewards = stored_run.scalars_of(run.path, 10**9)["critic/rewards/mean"]
    assert list(rewards[0][: run.num_steps - 1]) == list(range(1, run.num_steps))


def test_the_stage_that_got_slower_is_named(runs: Path, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    environment = job_environment(DFX_HISTORY_DIRECTORY=str(runs), DFX_LINGER_SECONDS="0")
    for name, rollout_seconds in (("base", "0.05"), ("slow", "0.3")):
        words = ["run", "--run", name, "--listen", "127.0.0.1:0", "--", sys.executable]
        command = [*DFX_AGENT, *words, str(script), rollout_seconds]
        assert subprocess.run(command, env=environment, check=False).returncode == 0
    done = subprocess.run(
        [*DFX_AGENT, "compare", "base", "slow", "--fail-over", "50%", "--json"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["parts"][0]["part"] == "rollout"
    assert found["parts"][0]["share_ratio"] > 0.8
    assert found["unit"] == "s per token"
    assert "slow is slower than base by" in done.stderr
