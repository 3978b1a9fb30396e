"""Console blocks of the README and of the how-to pages run after a plain ``pip install .``.

A line that cannot run here has its reason in ``NOT_RUN``.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from live_processes import ROOT, LiveAgent, Started, job_environment, started, until, unused_port

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
_BLOCK = re.compile(r"^ *```console\n(.*?)^ *```", re.DOTALL | re.MULTILINE)

# beginning of a line -> why it is not run
NOT_RUN = {
    "make ": "continuous integration runs these targets",
    "pip install .": "the fixture of this file does",
    "kubectl ": "needs a cluster; tests/integration/test_deploy.py reads the manifests",
    "dfx-agent diagnose --watch 60": "waits for a finding; tests/integration/test_diagnose.py does",
    "dfx-agent report hang.html": "needs a hang; tests/integration/test_diagnose.py runs it",
    "dfx-agent run -- python3 -m verl": "needs verl; tests/frameworks runs it",
}
# commands that end by themselves with 0
ENDS = [
    "(umask 077; python3 -c 'import secrets; print(secrets.token_hex(16))' > ~/.dfx-agent-token)",
    "(umask 077; python3 -c 'import secrets; print(secrets.token_hex(16))' > ~/dfx-token)",
    "dfx-agent assets --list",
    "dfx-agent assets ./dfx",
    (
        "dfx-agent assets ./dfx --force --set straggler_lost_share=0.2 "
        "--set grafana_url=https://grafana.example.org"
    ),
    "dfx-agent attribute boundary.py:finish_step --inputs step.json",
    "dfx-agent attribute boundary.py:finish_step --inputs step.json --synthetic-traffic 200",
    "dfx-agent backtest DIR --summary",
    "dfx-agent backtest metrics.jsonl --map reward=env/all/reward/total --map step=batch",
    "dfx-agent backtest outputs/checkpoint-500/trainer_state.json",
    "dfx-agent backtest runs/ --plot runs.html",
    "dfx-agent backtest runs/*.csv.gz --json --fail-on critical",
    "dfx-agent backtest runs/metrics.jsonl",
    "dfx-agent run -- accelerate launch train_grpo.py",
    "dfx-agent run -- python train.py",
    "dfx-agent run -- torchrun --nproc-per-node 8 train.py",
    "dfx-agent run -- torchrun --nproc-per-node 8 train_grpo.py",
    "export OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:9931/v1/traces",
    "export OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf",
]
# commands that serve until Ctrl-C
SERVES = [
    "dfx-agent hub --token-file ~/dfx-token",
    "dfx-agent serve",
    "dfx-agent serve --alertmanager http://10.0.0.7:9093 --webhook https://hooks.example.org/dfx",
    "dfx-agent serve --otlp http://127.0.0.1:4318",
    "dfx-agent watch /mnt/cluster/run7/metrics.jsonl",
    "dfx-agent watch metrics.jsonl",
]
# lines of a job that runs, in test_a_job_that_runs_is_joined
JOINS = [
    "dfx-agent attach --pid 24072",
    "dfx-agent attach --pid 24072 --check",
    "dfx-agent attach --pid PID",
    "dfx-agent diagnose",
    "dfx-agent top",
]
# lines about runs that were stored, in test_stored_runs_are_shown_and_compared
LOOKS_BACK = [
    "dfx-agent history",
    "dfx-agent history nightly",
    "dfx-agent compare nightly-20261127T200000 nightly-20261128T200000",
    "dfx-agent compare base.sqlite new.sqlite --fail-over 5%",
    (
        "dfx-agent sql \"select step, mean from step_values where name = 'stage:rollout' "
        'order by mean desc limit 5"'
    ),
]
# lines of a job on two nodes
OF_NODES = {
    "export DFX_HUB=auto DFX_TOKEN_FILE=~/dfx-token DFX_LISTEN=0.0.0.0:9931": (
        "dfx-agent run --run nightly -- torchrun --nnodes 2 --node-rank N --master-addr HOST "
        "... train.py"
    ),
    "export DFX_HUB=http://HOST:9932 DFX_TOKEN_FILE=~/dfx-token DFX_LISTEN=0.0.0.0:9931": (
        "dfx-agent run --run nightly -- torchrun --nnodes 2 ..."
    ),
}

# in place of a launcher: no torch is in the environment
LAUNCHER = """#!/bin/sh
while [ -e "$HOME/is-running" ]; do sleep 0.1; done
"""
BOUNDARY = """
import asyncio, json
import dfx_agent.shim as dfx


async def finish_step(samples, version):
    with dfx.stage("serialise"):
        json.dumps(samples)
    with dfx.stage("upload"):
        await asyncio.sleep(0.01)
"""

STEPS = """
import time
import dfx_agent.shim as dfx

dfx.init()
for step in range(1, 31):
    dfx.set_step(step)
    with dfx.stage("rollout"):
        time.sleep(0.02)
"""


def documented() -> set[str]:
    """Lines behind "$ ", without their comments."""
    text = "".join(found for page in PAGES for found in _BLOCK.findall(page.read_text()))
    lines = re.findall(r"^ *\$ (.*)$", text, re.MULTILINE)
    return {re.sub(r" +#.*$", "", line).strip() for line in lines}


def test_every_line_runs_here_or_has_a_reason() -> None:
    run = {*ENDS, *SERVES, *JOINS, *LOOKS_BACK, *OF_NODES, *OF_NODES.values()}
    lines = documented()
    assert len(lines) > 40
    assert {line for line in lines - run if not line.startswith(tuple(NOT_RUN))} == set()
    assert run - lines == set(), "no page shows these any more"
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with what ``pip install .`` brings, and stand-ins for launchers."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    pinned = ["--constraint", str(ROOT / "constraints.txt")]
    done = subprocess.run(
        [*pip, *quiet, *pinned, str(ROOT)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name in ("torchrun", "accelerate"):
        launcher = folder / "bin" / name
        launcher.write_text(LAUNCHER)
        launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    return folder / "bin"


class Shell:
    """Runs lines as a person would, in a folder with the files that the pages name."""

    def __init__(self, bin_folder: Path, folder: Path, segments: Path) -> None:
        self.folder, self.port = folder, unused_port()
        self._environment = job_environment(
            HOME=str(folder),
            PATH=f"{bin_folder}:{os.environ['PATH']}",
            DFX_DIR=str(segments),
            DFX_LISTEN=f"127.0.0.1:{self.port}",
            DFX_HISTORY_DIRECTORY=str(folder / "history"),
        )
        write_files(folder)

    def ends(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line], check=False, cwd=self.folder, env=self._environment,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def begins(self, line: str) -> Any:
        command = ["sh", "-c", f"exec {line}" if line.startswith("dfx-agent") else line]
        return started(command, self.folder, self._environment, cwd=self.folder)


def write_files(folder: Path) -> None:
    rows = [{"step": n, "batch": n, "loss": 1 / (n + 1), "reward": n / 50} for n in range(50)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("metrics.jsonl", "runs/metrics.jsonl", "DIR/metrics.jsonl", "run7/metrics.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace("reward", "env/all/reward/total"))
    table = "step,loss,reward\n" + "".join(f"{r['step']},{r['loss']},{r['reward']}\n" for r in rows)
    (folder / "runs" / "a.csv.gz").write_bytes(gzip.compress(table.encode()))
    history = [{"step": row["step"], "loss": row["loss"], "epoch": 0.1} for row in rows]
    (folder / "outputs" / "checkpoint-500").mkdir(parents=True)
    state = {"global_step": 50, "log_history": history}
    (folder / "outputs" / "checkpoint-500" / "trainer_state.json").write_text(json.dumps(state))
    labels = "path,kind,onset_row,sample\nmetrics.jsonl,healthy,,in\n"
    (folder / "DIR" / "LABELS.csv").write_text(labels)
    (folder / "boundary.py").write_text(BOUNDARY)
    (folder / "step.json").write_text(json.dumps({"samples": [1, 2], "version": 3}))
    (folder / "train.py").write_text("print('trained')\n")
    (folder / "dfx-token").write_text("secret-of-this-test\n")
    (folder / "dfx-token").chmod(0o600)


@pytest.fixture
def shell(bin_folder: Path, tmp_path: Path, dfx_dir: Path) -> Iterator[Shell]:
    yield Shell(bin_folder, tmp_path, dfx_dir)
    shutil.rmtree(tmp_path / "dfx", ignore_errors=True)


@pytest.mark.parametrize("line", ENDS)
def test_a_line_that_ends_by_itself_does_with_0(shell: Shell, line: str) -> None:
    ended = shell.ends(line)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("line", SERVES)
def test_a_line_that_serves_does_until_it_is_interrupted(shell: Shell, line: str) -> None:
    line = line.replace("/mnt/cluster/", "")
    listen = f" --listen 127.0.0.1:{shell.port}" if " hub " in line else ""
    with shell.begins(line + listen) as process:
        agent = LiveAgent(process, shell.port)
        until(lambda: agent.answers() or ended(process), "an answer")
        process.send(signal.SIGINT)
        assert process.wait() == 0, process.errors
    assert "Traceback" not in process.errors


def ended(process: Started) -> bool:
    return process.popen.poll() is not None


def test_a_job_that_runs_is_joined(shell: Shell) -> None:
    with shell.begins("exec python -c 'while True: sum(range(1000))'") as job:
        until(lambda: "python" in Path(f"/proc/{job.pid}/comm").read_text(), "a job")
        check = shell.ends(f"dfx-agent attach --pid {job.pid} --check")
        assert check.returncode == 0, check.stderr
        with shell.begins(f"dfx-agent attach --pid {job.pid}") as agent:
            until(lambda: "attached in" in agent.errors or ended(agent), "an attached job")
            for line in ("dfx-agent diagnose", "dfx-agent top"):  # one frame: no terminal
                asked = shell.ends(line)
                assert asked.returncode == 0, asked.stderr
            agent.send(signal.SIGINT)
            assert agent.wait() == 0, agent.errors


def test_stored_runs_are_shown_and_compared(shell: Shell) -> None:
    (shell.folder / "steps.py").write_text(STEPS)
    for _ in range(2):
        done = shell.ends("dfx-agent run --run nightly -- python steps.py")
        assert done.returncode == 0, done.stderr
    older, newer = sorted((shell.folder / "history").glob("nightly-*.sqlite"))
    for name in ("base.sqlite", "new.sqlite"):
        shutil.copy(older, shell.folder / name)
    names = {"nightly-20261127T200000": older.stem, "nightly-20261128T200000": newer.stem}
    for line in LOOKS_BACK:
        asked = shell.ends(re.sub("|".join(names), lambda found: names[found[0]], line))
        assert asked.returncode == 0, f"{line}: {asked.stderr}"
        assert asked.stdout


@pytest.mark.parametrize("export", OF_NODES)
def test_a_job_on_two_nodes_has_one_hub(shell: Shell, export: str) -> None:
    hub_port, is_running = unused_port(), shell.folder / "is-running"
    is_running.touch()
    is_auto = "auto" in export
    with ExitStack() as stack:
        if not is_auto:
            line = f"dfx-agent hub --token-file ~/dfx-token --listen 127.0.0.1:{hub_port}"
            until(LiveAgent(stack.enter_context(shell.begins(line)), hub_port).answers, "a hub")
        nodes = [
            stack.enter_context(shell.begins(on_node(export, number, hub_port)))
            for number in range(2)
        ]
        until(lambda: num_targets(shell, hub_port) == 2 or any(map(ended, nodes)), "two nodes")
        is_running.unlink()
        assert [node.wait() for node in nodes] == [0, 0], [node.errors for node in nodes]
    assert "No module named" not in "".join(node.errors for node in nodes)


def on_node(export: str, number: int, hub_port: int) -> str:
    """The two lines of a page, with what a person writes in place of its capital letters."""
    command = OF_NODES[export].replace(" ...", "").replace(" N ", f" {number} ")
    words = f"DFX_DIR=$DFX_DIR/{number} {export.removeprefix('export ')}"
    words = words.replace("DFX_HUB=auto", f"DFX_HUB=auto:{hub_port}").replace("9932", str(hub_port))
    words = words.replace("0.0.0.0:9931", f"0.0.0.0:{unused_port()}")
    line = f"mkdir -p $DFX_DIR/{number}; export {words}; exec {command}"
    return line.replace("HOST", "127.0.0.1")


def num_targets(shell: Shell, hub_port: int) -> int:
    """How many agents the hub names for Prometheus."""
    asked = shell.ends(
        f"curl -s -H 'Authorization: Bearer secret-of-this-test' "
        f"http://127.0.0.1:{hub_port}/api/v1/targets"
    )
    return len(json.loads(asked.stdout)) if asked.stdout.startswith("[") else 0
