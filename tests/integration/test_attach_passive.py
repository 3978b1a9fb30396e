"""``dfx-agent attach`` to jobs into which nothing can be brought: watched from outside."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_processes import LiveAgent, Started, job_environment, started, until
from test_attach import attached, interrupt, run_attach
from test_watch import series

from dfx_agent.node.segments.stacks import py_spy

JOB = """
import ctypes, json, sys, time
if "--hidden" in sys.argv:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
print("ready", flush=True)
folder = sys.argv[sys.argv.index("--output_dir") + 1]
events = None
if "--tensorboard" in sys.argv:
    from tensorboardX import SummaryWriter
    events = SummaryWriter(folder + "/runs")
with open(folder + "/metrics.jsonl", "a") as log:
    for step in range(10**6):
        values = {"actor/ppo_kl": 0.001, "actor/grad_norm": 0.5, "critic/score/mean": 0.1}
        log.write(json.dumps({"step": step, "data": values}) + "\\n")
        log.flush()
        if events:
            events.add_scalar("actor/entropy", 0.25, step)
            events.flush()
        time.sleep(0.05)
"""
REFUSED = "nothing can be brought in: the job is watched from outside, source=passive"


@contextmanager
def training(folder: Path, *options: str) -> Iterator[Started]:
    """A job that writes its logs below ``folder`` and has written some."""
    script = folder / "train.py"
    script.write_text(JOB)
    command = [sys.executable, str(script), "--output_dir", str(folder), *options]
    with started(command, folder, job_environment(), cwd=folder) as job:
        log = folder / "metrics.jsonl"
        until(lambda: job.output and log.exists() and log.stat().st_size, "the job trains")
        yield job


@contextmanager
def stopped(job: Started) -> Iterator[None]:
    """Stopped for good: no route into it works, and nothing of it changes by itself."""
    job.popen.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{job.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    yield
    job.popen.send_signal(signal.SIGCONT)


def state_of(pid: int) -> tuple[str, list[str], str, list[str]]:
    """What an injection would change: memory map, threads, who traces it, its open files."""
    proc = Path(f"/proc/{pid}")
    tracer = re.search(r"TracerPid:\t(\d+)", (proc / "status").read_text())
    files = sorted(f"{fd.name} {fd.readlink()}" for fd in (proc / "fd").iterdir())
    return (proc / "maps").read_text(), sorted(os.listdir(proc / "task")), tracer[1], files


def newest_step(agent: LiveAgent) -> int:
    (run,) = agent.snapshot()["runs"]
    steps = [
        s["step"] for rank in run["ranks"] for s in rank["scalars"] if s["key"] == "actor/ppo_kl"
    ]
    return max(steps, default=-1)


def test_a_job_that_takes_nothing_is_watched_and_left_untouched(dfx_dir, tmp_path) -> None:
    with training(tmp_path) as job:
        with stopped(job):
            before = state_of(job.pid)
            with attached(job.pid, tmp_path) as agent:
                result = agent.process.errors
                assert f"pid {job.pid} is stopped (state T); `kill -CONT {job.pid}` first" in result
                assert REFUSED in result
                until(lambda: series(agent, "dfx_actor_grad_norm"), "the log")
                until(lambda: series(agent, "dfx_passive_threads"), "the process")
                threads = {labels["state"]: n for labels, n in series(agent, "dfx_passive_threads")}
                assert threads == {"T": len(before[1])}
                ((labels, _),) = [
                    row for row in series(agent, "dfx_rank_info") if row[0]["role"] == "driver"
                ]
                assert (labels["source"], labels["pid"]) == ("passive", str(job.pid))
                assert series(agent, "dfx_host_memory_anonymous_bytes")[0][1] > 2**20
                for name in ("dfx_rank_wall_seconds_total", "dfx_rank_idle_seconds_total"):
                    assert series(agent, name) == []
                interrupt(agent)
            assert state_of(job.pid) == before
        assert job.popen.poll() is None
    assert not list(dfx_dir.glob("*.seg"))


def test_what_the_job_logs_reaches_page_and_detector_while_it_runs(dfx_dir, tmp_path) -> None:
    has_events = importlib.util.find_spec("tensorboardX") is not None
    options = ("--tensorboard",) if has_events else ()
    with (
        training(tmp_path, *options) as job,
        attached(job.pid, tmp_path, "--method", "passive", "--run", "it") as agent,
    ):
        assert "is watched from outside" not in agent.process.errors, "nothing was tried"
        first = until(lambda: newest_step(agent) + 1, "the log")
        until(lambda: newest_step(agent) > first + 5, "it goes on")
        until(lambda: series(agent, "dfx_symptom_active"), "the detector")
        if has_events:
            until(lambda: series(agent, "dfx_actor_entropy_nats"), "TensorBoard's file")
        assert {labels["run"] for labels, _ in series(agent, "dfx_rank_up")} == {"it"}
        interrupt(agent)
        assert job.popen.poll() is None


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="no py-spy; pip install py-spy")
def test_stacks_are_sampled_and_only_counted(dfx_dir, tmp_path) -> None:
    with (
        training(tmp_path) as job,
        attached(job.pid, tmp_path, "--method", "passive") as agent,
    ):
        until(lambda: series(agent, "dfx_passive_stack_samples_total"), "a stack")
        assert {
            labels["stage"] for labels, _ in series(agent, "dfx_passive_stack_samples_total")
        } == {""}
        interrupt(agent)


def without_ptrace() -> list[str]:
    """A prefix under which this user may not look into a process that is not dumpable."""
    if os.getuid():
        return []
    prefix = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False, timeout=60)
    if tried.returncode:
        pytest.skip(f"cannot drop CAP_SYS_PTRACE here: {tried.stderr.decode().strip()[-200:]}")
    return prefix


def test_what_may_not_be_read_is_said_and_what_may_is_used(dfx_dir, tmp_path) -> None:
    prefix = without_ptrace()
    with (
        training(tmp_path, "--hidden") as job,
        attached(job.pid, tmp_path, prefix=prefix) as agent,
    ):
        result = agent.process.errors
        # CAP_PERFMON opens the environment on newer kernels
        assert re.search(r"may not be read: open files(, environment)?, working folder; \w", result)
        assert REFUSED in result
        until(lambda: series(agent, "dfx_actor_grad_norm"), "the log that its command line names")
        until(lambda: series(agent, "dfx_passive_cpu_seconds_total"), "the process")
        interrupt(agent)
        assert job.popen.poll() is None


def test_check_shows_what_would_be_seen(dfx_dir, tmp_path) -> None:
    with training(tmp_path) as job:
        check = run_attach(job.pid, "--check")
        assert check.returncode == 0
        row = rf"process pid {job.pid} +3\.\S+ +yes +\w+\s+3\.\S+ +yes +passive +state, CPU, memory"
        assert re.search(row, check.stdout), check.stdout
        assert "metrics.jsonl" in check.stdout
        if py_spy() is None:
            assert "'dfx-agent[passive]'" in check.stdout
        with stopped(job):
            assert run_attach(job.pid, "--check").returncode == 2, "nothing can be brought in"
            passive = run_attach(job.pid, "--check", "--method", "passive")
            assert passive.returncode == 0
            assert "is stopped" not in passive.stdout
        refused = run_attach(job.pid, "--method", "passive", "--inject-only")
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
