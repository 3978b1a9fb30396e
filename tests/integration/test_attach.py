"""``dfx-agent attach`` on jobs that nobody prepared: torchrun with DDP, and every interpreter."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from live_processes import (
    DFX_AGENT,
    HERE,
    TORCHRUN,
    LiveAgent,
    Started,
    job_environment,
    started,
    until,
    unused_port,
)
from test_interpreters import interpreters

NUM_RANKS = 2
INTERPRETERS = interpreters()
JOB = str(HERE / "jobs" / "unobserved_ddp.py")

# Starts two ranks, and at SIGUSR1 two others in their place, with the next port.
RESTARTING = """
import os, signal, subprocess, sys, time
job, *ports = sys.argv[1:]
ranks = []
def start(*_):
    while ranks:
        rank = ranks.pop()
        rank.kill()
        rank.wait()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports.pop(0), "WORLD_SIZE": "2"}
    for number in "01":
        env = {**os.environ, **place, "RANK": number}
        ranks.append(subprocess.Popen([sys.executable, job], env=env))
signal.signal(signal.SIGUSR1, start)
start()
while True:
    time.sleep(600)
"""


class Job:
    """A torchrun job and what its ranks say about themselves."""

    def __init__(self, launcher: Started) -> None:
        self.launcher = launcher

    @property
    def pids(self) -> list[int]:
        """Of the ranks, in order of ranks."""
        pairs = []
        for process in self.launcher.descendants():
            with suppress(psutil.Error):
                if (rank := process.environ().get("RANK")) is not None:
                    pairs.append((rank, process.pid))
        return [pid for _, pid in sorted(pairs)]

    def reports(self) -> list[dict[str, Any]]:
        """One per rank, by rank: step, and what is not as it was at the start."""
        seen = len(self._lines())
        for pid in self.pids:
            os.kill(pid, signal.SIGUSR2)
        until(lambda: len(self._lines()) >= seen + NUM_RANKS, "all ranks report")
        return sorted(self._lines()[seen:], key=lambda line: line["rank"])

    def changed(self) -> list[list[str]]:
        return [report["changed"] for report in self.reports()]

    def _lines(self) -> list[dict[str, Any]]:
        lines = self.launcher.output.splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_until_trains(self, num_starts: int = NUM_RANKS) -> None:
        def trains() -> bool:
            assert self.launcher.popen.poll() is None, self.launcher.errors
            return self.launcher.output.count("training") >= num_starts

        until(trains, "the job trains", 90)


@contextmanager
def torchrun(folder: Path, *wrapper: str) -> Iterator[Job]:
    env = job_environment()
    env.pop("DFX_DIR", None)  # it knows nothing of us
    command = [*wrapper, *TORCHRUN, str(NUM_RANKS), JOB]
    with started(command, folder, env) as launcher:
        job = Job(launcher)
        job.wait_until_trains()
        yield job


@pytest.fixture(scope="module")
def running_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with torchrun(tmp_path_factory.mktemp("job")) as job:
        yield job


@pytest.fixture
def job(running_job: Job) -> Job:
    """Without a guest that a test before may have left behind."""
    until(lambda: running_job.changed() == [[], []], "the job is alone", 60)
    return running_job


@contextmanager
def attached(
    pid: int, folder: Path, *options: str, prefix: Sequence[str] = ()
) -> Iterator[LiveAgent]:
    """A real ``dfx-agent attach`` that serves; ``prefix`` runs it under another program."""
    port = unused_port()
    command = [
        *prefix,
        *DFX_AGENT,
        "attach",
        "--pid",
        str(pid),
        "--listen",
        f"127.0.0.1:{port}",
        *options,
    ]
    with started(command, folder) as process:
        agent = LiveAgent(process, port)
        agent.wait_until_ready()
        until(lambda: "page http" in process.errors or process.popen.poll() is not None, "attached")
        yield agent


def run_attach(pid: int, *options: str, verb: str = "attach") -> subprocess.CompletedProcess[str]:
    command = [*DFX_AGENT, verb, "--pid", str(pid), *options]
    env = job_environment(COLUMNS="200")
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def interrupt(agent: LiveAgent) -> None:
    agent.process.send(signal.SIGINT)
    assert agent.process.wait(30) == 0, agent.process.errors


def has_samples(text: str, family: str, *labels: str) -> bool:
    """Whether every rank has a sample of the family with these labels."""
    lines = [line for line in text.splitlines() if line.startswith(f"{family}{{")]
    return all(
        any(f'rank="{rank}"' in line and all(label in line for label in labels) for line in lines)
        for rank in range(NUM_RANKS)
    )


SHOWN = [
    ("dfx_rank_step_seconds",),
    ("dfx_rank_stage_active_seconds_total", 'stage="forward"'),
    ("dfx_rank_stage_active_seconds_total", 'stage="backward"'),
    ("dfx_rank_stage_active_seconds_total", 'stage="optimizer"'),
    ("dfx_rank_collectives_total", 'stage=""', 'method="arrival"'),
    ("dfx_rank_collectives_total", 'stage="backward"', 'method="arrival"'),
    ("dfx_rank_wait_seconds_total", 'kind="collective"'),
    ("dfx_host_memory_anonymous_bytes",),
    ("dfx_loss",),
    ("dfx_grad_norm",),
    ("dfx_optimizer_steps_total",),
    ("dfx_patch_active", 'name="collectives"'),
]


def missing(text: str) -> list[tuple[str, ...]]:
    return [wanted for wanted in SHOWN if not has_samples(text, *wanted)]


@pytest.mark.smoke
def test_a_plain_job_is_seen_within_seconds_and_left_as_it_was(job, dfx_dir, tmp_path) -> None:
    assert job.changed() == [[], []]
    with attached(job.launcher.pid, tmp_path) as agent:
        with suppress(AssertionError):
            until(lambda: not missing(agent.get("/metrics")), "every rank shows everything", 20)
        assert missing(agent.get("/metrics")) == []
        ranks = agent.ranks()
        assert sorted(ranks) == ["0", "1"]
        assert [ranks[rank]["pid"] for rank in ("0", "1")] == job.pids
        assert all("functions" in changed for changed in job.changed())
        begin = job.reports()
        interrupt(agent)
        lines = agent.process.errors
    for rank, pid in enumerate(job.pids):
        assert re.search(
            rf"rank {rank} pid {pid}: attached in \d+\.\d\d s \(\w+, Python 3\.\d+\)", lines
        )
        assert re.search(rf"rank {rank} pid {pid}: detached in", lines)
    after = job.reports()
    assert [report["changed"] for report in after] == [[], []]
    assert all(b["step"] < a["step"] for b, a in zip(begin, after, strict=True))
    stored = {
        "agent.lock",
        "incidents.json",
        "signals",
        "token",
        "totals.json",
    }  # by the agent, for the next one
    assert {path.name for path in dfx_dir.iterdir()} <= stored


def test_the_page_names_the_job_by_its_script_and_rendezvous(job, dfx_dir, tmp_path) -> None:
    with attached(job.pids[1], tmp_path) as agent:
        until(
            lambda: len(agent.snapshot()["runs"][0]["ranks"]) == NUM_RANKS, "both ranks are shown"
        )
        (run,) = agent.snapshot()["runs"]
        assert re.fullmatch(r"unobserved_ddp-[0-9a-f]{8}", run["run"]), agent.process.errors
        assert sorted(rank["role"] for rank in run["ranks"]) == ["trainer", "trainer"]
        interrupt(agent)


def test_only_this(job, dfx_dir, tmp_path) -> None:
    with attached(job.pids[1], tmp_path, "--only-this", "--run", "one") as agent:
        until(lambda: sorted(agent.ranks()) == ["1"], "that rank is shown")
        assert agent.snapshot()["runs"][0]["run"] == "one"
        assert job.changed()[0] == []
        interrupt(agent)
    assert job.changed() == [[], []]


def test_a_second_agent_learns_who_is_attached(job, dfx_dir, tmp_path) -> None:
    with attached(job.launcher.pid, tmp_path) as agent:
        second = run_attach(job.pids[0], "--listen", f"127.0.0.1:{unused_port()}")
        assert second.returncode == 2
        result = rf"dfx-agent pid {agent.process.pid} is attached to pid \d+ since \d{{4}}-"
        assert re.search(result, second.stderr)
        assert sorted(agent.ranks()) == ["0", "1"]
        interrupt(agent)
    assert job.changed() == [[], []]


def test_after_kill_9_of_the_agent_the_guest_leaves_by_itself(job, dfx_dir, tmp_path) -> None:
    with attached(job.launcher.pid, tmp_path, "--grace-seconds", "3") as agent:
        agent.kill()
        assert all("functions" in changed for changed in job.changed())
        until(lambda: job.changed() == [[], []], "the guests have left", 15)
    assert list(dfx_dir.glob("*.seg")) == []


def test_an_agent_that_comes_within_the_grace_period_takes_over(job, dfx_dir, tmp_path) -> None:
    with attached(job.launcher.pid, tmp_path) as agent:
        agent.kill()
    with attached(job.launcher.pid, tmp_path) as agent:
        assert agent.process.errors.count("has its guest already") == NUM_RANKS
        until(lambda: sorted(agent.ranks()) == ["0", "1"], "both ranks are shown")
        interrupt(agent)
    assert job.changed() == [[], []]


def test_inject_only_and_detach(job, dfx_dir) -> None:
    injected = run_attach(job.launcher.pid, "--inject-only")
    assert injected.returncode == 0
    assert injected.stderr.count(": attached in ") == NUM_RANKS
    assert "nobody serves" in injected.stderr
    assert all("functions" in changed for changed in job.changed())

    detached = run_attach(job.pids[0], verb="detach")
    assert detached.returncode == 0, detached.stderr
    assert detached.stderr.count(": detached") == NUM_RANKS
    assert job.changed() == [[], []]

    again = run_attach(job.pids[0], verb="detach")
    assert again.returncode == 2
    assert "no guest in the job of pid" in again.stderr


def test_a_second_attach_changes_the_budget_and_says_so(job, dfx_dir) -> None:
    first = run_attach(job.launcher.pid, "--inject-only", "--max-overhead", "0.5%")
    assert first.stderr.count(": attached in ") == NUM_RANKS, first.stderr

    def again(*options: str) -> list[str]:
        done = run_attach(job.launcher.pid, "--inject-only", *options)
        assert done.returncode == 0, done.stderr
        lines = done.stderr.splitlines()
        return [line.rpartition(", ")[2] for line in lines if "has its guest already" in line]

    assert again() == ["budget 0.5 %"] * NUM_RANKS
    assert again("--max-overhead", "0.005") == ["budget 0.5 %"] * NUM_RANKS
    assert again("--max-overhead", "1%") == ["budget now 1 % instead of 0.5 %"] * NUM_RANKS
    assert again() == ["budget 1 %"] * NUM_RANKS
    assert run_attach(job.launcher.pid, verb="detach").returncode == 0


def test_a_guest_gives_up_what_the_budget_does_not_allow(job, dfx_dir, tmp_path) -> None:
    with attached(job.launcher.pid, tmp_path, "--max-overhead", "0.0001%") as agent:
        wanted = "every rank gives up"
        until(lambda: has_samples(agent.get("/metrics"), "dfx_guest_given_up"), wanted, 60)
        interrupt(agent)
    assert job.changed() == [[], []]


def test_guests_leave_when_what_serves_cannot_be_loaded(job, dfx_dir, tmp_path) -> None:
    """It is loaded while the guests come in; their helpers do not see this folder."""
    (tmp_path / "fastapi.py").write_text("raise ImportError('broken')")
    command = [*DFX_AGENT, "attach", "--pid", str(job.launcher.pid), "--listen", "127.0.0.1:0"]
    env = job_environment(PYTHONPATH=str(tmp_path))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count(": attached in ") == NUM_RANKS
    assert done.stderr.count(": detached in ") == NUM_RANKS
    assert "broken" in done.stderr
    assert job.changed() == [[], []]


def test_nothing_is_changed_when_the_address_is_taken(job, dfx_dir) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = run_attach(job.launcher.pid, "--listen", address)
    assert done.returncode == 1
    assert re.fullmatch(rf"dfx-agent: cannot listen on {address}: .*\n", done.stderr)
    assert job.changed() == [[], []]


def test_detach_says_that_a_process_died_meanwhile(dfx_dir) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout
    child.stdout.readline()
    try:
        assert run_attach(child.pid, "--inject-only").returncode == 0
        child.send_signal(signal.SIGSTOP)  # it cannot answer
        command = [*DFX_AGENT, "detach", "--pid", str(child.pid)]
        detach = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        until(lambda: list(dfx_dir.glob("*.detach")), "it is asked to leave")
        child.kill()
        _, errors = detach.communicate(timeout=60)
        assert f"pid {child.pid}: died while detaching\n" in errors
        assert errors.count("\n") == 1
        assert detach.returncode == 1
    finally:
        child.kill()
        child.communicate()


def test_many_times_in_and_out_leave_nothing(job, dfx_dir) -> None:
    """The guests are alone for a moment each time; the agent's lock is ours."""
    with (dfx_dir / "agent.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(3):
            assert run_attach(job.launcher.pid, "--inject-only").returncode == 0
            assert run_attach(job.launcher.pid, verb="detach").returncode == 0
    assert job.changed() == [[], []]


def test_restarted_ranks_are_attached_too(dfx_dir, tmp_path) -> None:
    """As torchrun does it, but torchrun's own restart with gloo fails here now and then."""
    launcher = tmp_path / "torchrun"
    launcher.write_text(RESTARTING)
    env = job_environment()
    env.pop("DFX_DIR")
    ports = [str(unused_port()) for _ in range(2)]
    with started([sys.executable, str(launcher), JOB, *ports], tmp_path, env) as process:
        job = Job(process)
        job.wait_until_trains()
        first = job.pids
        with attached(process.pid, tmp_path) as agent:
            process.popen.send_signal(signal.SIGUSR1)
            job.wait_until_trains(2 * NUM_RANKS)
            second = job.pids
            assert not set(first) & set(second)

            def both_are_shown() -> bool:
                ranks = agent.ranks()
                return [ranks[r]["pid"] for r in sorted(ranks) if ranks[r]["step"]] == second

            until(both_are_shown, "the new ranks are shown", 30)

            def both_are_attached() -> bool:  # a slow machine needs a second try
                return all(f"pid {pid}: attached in " in agent.process.errors for pid in second)

            until(both_are_attached, "the new ranks are attached", 60)
            interrupt(agent)
            assert agent.process.errors.count(": detached in") >= NUM_RANKS


def test_check_says_what_would_work_and_changes_nothing(job, dfx_dir) -> None:
    check = run_attach(job.launcher.pid, "--check")
    assert check.returncode == 0
    for rank, pid in enumerate(job.pids):
        assert re.search(rf"rank {rank} pid {pid} +3\.\d+(\.\d+)? +yes", check.stdout)
    assert job.changed() == [[], []]
    assert list(dfx_dir.iterdir()) == []


def test_check_of_a_process_that_cannot_be_attached_to(dfx_dir) -> None:
    sleep = "import time; print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", sleep], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    child.send_signal(signal.SIGSTOP)
    try:
        check = run_attach(child.pid, "--check")
        assert check.returncode == 2
        assert f"pid {child.pid} is stopped (state T)" in check.stdout
        attach = run_attach(child.pid, "--inject-only")
        assert attach.returncode == 2
        assert f"pid {child.pid} is stopped (state T); `kill -CONT {child.pid}`" in attach.stderr
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--pid", "4194305"], "no process with pid 4194305 in this pid namespace"),
        (["--pid", "x"], "invalid int value"),
        (["--pid", "1", "--grace-seconds", "0"], "--grace-seconds 0: give a positive number"),
        (["--pid", "1", "--max-overhead", "much"], "--max-overhead much: write a share of time"),
        (
            ["--pid", "1", "--max-overhead", "1%", "--method", "passive"],
            "--max-overhead with --method passive: nothing would be brought in",
        ),
        ([], "required: --pid"),
    ],
)
def test_wrong_use_is_one_line(options: list[str], says: str, dfx_dir) -> None:
    command = [*DFX_AGENT, "attach", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_job_under_run_has_one_guest(dfx_dir, tmp_path) -> None:
    rank_loop = str(HERE / "rank_loop.py")
    serving = ["run", "--listen", f"127.0.0.1:{unused_port()}", "--run", "own", "--"]
    with started([*DFX_AGENT, *serving, sys.executable, rank_loop], tmp_path) as process:
        until(lambda: list(dfx_dir.glob("*.seg")), "the job records")
        (pid,) = {int(path.name.partition("-")[0]) for path in dfx_dir.glob("*.seg")}
        attach = run_attach(pid, "--inject-only")
        assert attach.returncode == 0
        assert attach.stderr.rstrip().endswith("is observed already, by a guest of its own")
        budget = run_attach(pid, "--inject-only", "--max-overhead", "1%")
        assert budget.returncode == 0
        assert "by a guest of its own: its budget stays as it was started" in budget.stderr
        detach = run_attach(pid, verb="detach")
        assert detach.returncode == 2
        assert "belongs to the job" in detach.stderr
        assert process.popen.poll() is None


LOOP = """
import os, sys, time
print("ready", flush=True)
while True:
    time.sleep(0.01)
    if sys.stdin in __import__("select").select([sys.stdin], [], [], 0)[0]:
        sys.stdin.readline()
        guest = getattr(os, "_dfx_residue", {}).get("guest")
        modules = guest is not None and guest.is_active and sorted(guest.modules)
        print(modules, [n for n in sys.modules if "dfx" in n], flush=True)
"""


@pytest.mark.parametrize("python", INTERPRETERS.values(), ids=INTERPRETERS)
def test_every_interpreter_without_torch(python: str, dfx_dir) -> None:
    child = subprocess.Popen(
        [python, "-I", "-S", "-c", LOOP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin
    assert child.stdout
    assert child.stdout.readline() == "ready\n"

    def modules() -> str:
        child.stdin.write("\n")
        child.stdin.flush()
        return child.stdout.readline()

    try:
        time.sleep(0.1)
        attach = run_attach(child.pid, "--inject-only")
        assert attach.returncode == 0, attach.stderr
        assert "dfx_agent.shim.attached" in modules()
        assert run_attach(child.pid, verb="detach").returncode == 0
        assert modules() == "False []\n"
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()
