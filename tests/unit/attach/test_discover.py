"""Jobs are found among real processes; only what launchers leave in them is made here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dfx_agent.attach.discover import DiscoveredJob
from dfx_agent.attach.processes import HostProcess, ProcessTable
from dfx_agent.base.errors import AttachError

# Says that it is there, has "torch" in memory if it is to, and waits.
RANK = """
import mmap, os, sys, time
def compute():
    path = os.environ.get("MAPS_TORCH")
    if path:
        with open(path, "rb") as file:
            globals()["held"] = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if os.environ.get("COMM"):
        open("/proc/self/comm", "w").write(os.environ["COMM"])
    print("ready", os.getpid(), flush=True)
    time.sleep(600)
"""
COMPUTE = RANK + "compute()\n"
# Starts one child per argument "NAME=VALUE,NAME=VALUE", and waits.
LAUNCHER = """
import os, subprocess, sys, time
for text in sys.argv[2:]:
    env = {**os.environ, **dict(pair.split("=") for pair in text.split(","))}
    subprocess.Popen([sys.executable, "-S", sys.argv[1], "--lr", "1"], env=env)
time.sleep(600)
"""
# The same, and at SIGUSR1 they are replaced by others.
RESTARTING = """
import os, signal, subprocess, sys, time
def start(port):
    for text in sys.argv[2:]:
        given = dict(pair.split("=") for pair in text.split(","))
        env = {**os.environ, **given, "MASTER_PORT": port}
        children.append(subprocess.Popen([sys.executable, "-S", sys.argv[1], "--lr", "1"], env=env))
def restart(*_):
    while children:
        children.pop().kill()
    start("29501")
children = []
signal.signal(signal.SIGUSR1, restart)
start("29500")
while True:
    time.sleep(600)
"""
FORKING = RANK + "os.fork()\ncompute()\n"
SPAWNING = (
    RANK
    + """
if __name__ == "__main__":
    import multiprocessing
    child = multiprocessing.get_context("spawn").Process(target=compute, daemon=True)
    child.start()
    compute()
"""
)


class Started:
    """Processes of a test; the pids of those that said they are ready, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._popens: list[subprocess.Popen[str]] = []
        self.torch = folder / "libtorch_cpu.so"
        self.torch.write_bytes(b"x" * 4096)

    def script(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def start(self, command: list[str], num_ready: int, **env: str) -> tuple[int, list[int]]:
        """(pid, pids of the processes that are ready)."""
        clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        popen = subprocess.Popen(
            command,
            env={**clean, **env},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._popens.append(popen)
        return popen.pid, self.read_ready(popen.pid, num_ready)

    def read_ready(self, pid: int, num_ready: int) -> list[int]:
        (popen,) = [popen for popen in self._popens if popen.pid == pid]
        assert popen.stdout
        return sorted(int(popen.stdout.readline().split()[1]) for _ in range(num_ready))

    def python(self, script: str, *args: str, num_ready: int = 1, **env: str) -> Any:
        return self.start([sys.executable, "-S", script, *args], num_ready, **env)

    def torchrun(self, *ranks: str, name: str = "torchrun", **env: str) -> tuple[int, list[int]]:
        launcher = self.script(f"bin/{name}", LAUNCHER)
        train = self.script("train.py", COMPUTE)
        return self.python(launcher, train, *ranks, num_ready=len(ranks), **env)

    def end(self) -> None:
        for popen in self._popens:
            with suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
            assert popen.stdout
            popen.stdout.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    processes = Started(tmp_path)
    yield processes
    processes.end()


def pids(job: DiscoveredJob) -> set[int]:
    return {member.pid for member in job.members()}


def rank(number: int, run_id: str = "abcdef0123", port: int = 29500, **more: str) -> str:
    pairs = {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        **more,
    }
    return ",".join(f"{name}={value}" for name, value in pairs.items() if value)


def test_ranks_of_a_launcher_from_its_pid_and_from_theirs(started: Started) -> None:
    launcher, ranks = started.torchrun(rank(1), rank(0))
    started.torchrun(rank(0, run_id="other"))
    for pid in (launcher, *ranks):
        job = DiscoveredJob(pid)
        members = job.members()
        assert {member.pid for member in members} == set(ranks)
        assert [member.rank for member in members] == [0, 1]
        assert {member.role for member in members} == {"trainer"}
        assert job.run == "train-abcdef01"
    assert str(DiscoveredJob(launcher).members()[0]).startswith("rank 0 pid ")


def test_only_this(started: Started) -> None:
    _, ranks = started.torchrun(rank(0), rank(1))
    assert pids(DiscoveredJob(ranks[0], only_this=True)) == {ranks[0]}


@pytest.mark.parametrize(
    "name", ["torchrun", "accelerate", "deepspeed", "deepspeed.launcher.launch"]
)
def test_launchers_are_known_and_are_no_ranks(started: Started, name: str) -> None:
    """As with srun, the launcher has a rank of its own in its environment."""
    is_module = "." in name
    script = started.script(f"{name.replace('.', '/')}{'.py' if is_module else ''}", LAUNCHER)
    train = started.script("train.py", COMPUTE)
    command = [sys.executable, *(["-m", name] if is_module else [script]), train]
    launcher, ranks = started.start([*command, rank(0), rank(1)], 2, RANK="0", MASTER_PORT="1")
    assert pids(DiscoveredJob(launcher)) == set(ranks)


def test_a_second_launcher_of_the_same_job_is_found(started: Started) -> None:
    _, first = started.torchrun(rank(0), rank(1))
    _, second = started.torchrun(rank(2), rank(3))
    assert pids(DiscoveredJob(first[0])) == {*first, *second}


def test_jobs_with_one_run_id_and_two_rendezvous_are_two(started: Started) -> None:
    _, first = started.torchrun(rank(0, run_id="job", port=29500))
    started.torchrun(rank(0, run_id="job", port=29600))
    assert pids(DiscoveredJob(first[0])) == set(first)


def test_ranks_that_come_later_under_another_port(started: Started) -> None:
    """torchrun restarts its workers with a new rendezvous."""
    launcher = started.script("bin/torchrun", RESTARTING)
    train = started.script("train.py", COMPUTE)
    pid, first = started.python(launcher, train, rank(0), rank(1), num_ready=2)
    job = DiscoveredJob(first[0])
    assert pids(job) == set(first)
    os.kill(pid, signal.SIGUSR1)
    second = started.read_ready(pid, 2)
    assert pids(job) == set(second)


def test_ranks_that_a_shell_starts_are_one_job(started: Started) -> None:
    train = started.script("train.py", COMPUTE)
    command = f"RANK=0 {sys.executable} {train} & RANK=1 {sys.executable} {train} & wait"
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29711", "WORLD_SIZE": "2"}
    shell, ranks = started.start(["bash", "-c", command], 2, **shared)
    assert pids(DiscoveredJob(ranks[1])) == pids(DiscoveredJob(shell)) == set(ranks)
    assert DiscoveredJob(ranks[0]).run == "train-29711"


def test_ranks_of_mpi(started: Started) -> None:
    ours = [f"OMPI_COMM_WORLD_RANK={n},PMIX_NAMESPACE=prterun-1@1" for n in range(2)]
    _, first = started.torchrun(*ours, name="mpirun")
    _, other = started.torchrun("OMPI_COMM_WORLD_RANK=0,PMIX_NAMESPACE=prterun-2@1", name="mpirun")
    assert pids(DiscoveredJob(first[1])) == set(first)
    assert [member.rank for member in DiscoveredJob(first[0]).members()] == [0, 1]
    assert pids(DiscoveredJob(other[0])) == set(other)


def test_two_programs_in_one_shell_of_slurm_are_two_jobs(started: Started) -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    train = started.script("train.py", COMPUTE)
    first, _ = started.python(train, **step)
    started.python(train, **step)
    assert pids(DiscoveredJob(first)) == {first}


def test_tasks_of_a_slurm_step_are_one_job(started: Started) -> None:
    train = started.script("train.py", COMPUTE)
    step = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "8", "SLURM_NTASKS": "2"}
    both = {started.python(train, SLURM_PROCID=str(n), **step)[0] for n in range(2)}
    started.python(train, **{**step, "SLURM_STEP_ID": "1"}, SLURM_PROCID="0")
    assert pids(DiscoveredJob(min(both))) == both


def test_workers_that_a_rank_forks_are_not_attached_to(started: Started) -> None:
    script = started.script("train.py", FORKING)
    variables = {"RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    parent, both = started.python(script, num_ready=2, MAPS_TORCH=str(started.torch), **variables)
    assert len(both) == 2
    assert pids(DiscoveredJob(parent)) == {parent}


def test_forked_trainers_without_a_launcher_are(started: Started) -> None:
    script = started.script("train.py", FORKING)
    parent, both = started.python(script, num_ready=2, MAPS_TORCH=str(started.torch))
    assert pids(DiscoveredJob(parent)) == set(both)
    assert pids(DiscoveredJob(max(set(both) - {parent}))) == set(both)


def test_workers_of_a_data_loader_are_not(started: Started) -> None:
    script = started.script("train.py", FORKING)
    parent, both = started.python(
        script, num_ready=2, MAPS_TORCH=str(started.torch), COMM="pt_data_worker"
    )
    assert len(both) == 2
    assert pids(DiscoveredJob(parent)) == set()  # the parent took the name too


@pytest.mark.parametrize("has_torch", [True, False])
def test_a_spawned_collector_is_found_when_it_computes(
    started: Started, *, has_torch: bool
) -> None:
    script = started.script("learner.py", SPAWNING)
    env = {"MAPS_TORCH": str(started.torch)} if has_torch else {}
    learner, both = started.python(script, num_ready=2, **env)
    (collector,) = set(both) - {learner}
    found = {member.pid: member.role for member in DiscoveredJob(learner).members()}
    assert found == ({learner: "", collector: "collector"} if has_torch else {learner: ""})
    if has_torch:
        assert pids(DiscoveredJob(collector)) == set(both)


def actor(started: Started, title: str, job: str, **env: str) -> int:
    # COMM as setproctitle does it; the interpreter finds its library by PYTHONHOME then
    command = [title, "-S", "-c", COMPUTE]
    popen = subprocess.Popen(
        command,
        executable=sys.executable,
        env={
            "PYTHONHOME": sys.base_prefix,
            "COMM": title[:15],
            "MAPS_TORCH": str(started.torch),
            "RAY_JOB_ID": job,
            **env,
        },
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started._popens.append(popen)
    assert popen.stdout
    assert popen.stdout.readline().startswith("ready")
    return popen.pid


def test_actors_of_one_ray_job_with_their_roles(started: Started) -> None:
    expected = {
        actor(started, "ray::TaskRunner.run", "01000000"): "driver",
        actor(started, "ray::ActorRolloutRefWorker.update", "01000000", RANK="0"): "actor",
        actor(started, "ray::CriticWorker.update", "01000000", RANK="0"): "critic",
        actor(started, "ray::ReferenceModelActor.forward", "01000000"): "ref",
        actor(started, "ray::RewardModelActor.forward", "01000000"): "reward",
        actor(started, "ray::vLLMHttpServer.generate", "01000000"): "rollout",
        actor(started, "ray::Bundle.run", "01000000"): "Bundle",
    }
    actor(started, "ray::IDLE", "01000000")
    actor(started, "ray::TaskRunner.run", "02000000")
    actor(started, "ray::Queue", "01000000", MAPS_TORCH="")
    for pid in expected:
        assert {member.pid: member.role for member in DiscoveredJob(pid).members()} == expected


def test_the_programs_of_prime_rl_by_their_output_folder(started: Started) -> None:
    started.script("configs/trainer.toml", 'max_steps = 5\noutput_dir = "outputs"\n')
    started.script("configs/orchestrator.toml", 'output_dir = "outputs/run_default"\n')
    trainer = started.script("bin/trainer", COMPUTE)
    orchestrator = started.script("bin/orchestrator", COMPUTE)
    inference = started.script("bin/inference", COMPUTE)
    shared = {"MAPS_TORCH": str(started.torch)}
    expected = {
        started.python(trainer, "@", "configs/trainer.toml", **shared)[0]: "trainer",
        started.python(orchestrator, "@", "configs/orchestrator.toml", **shared)[0]: "orchestrator",
        started.python(inference, "--output-dir", "outputs", **shared)[0]: "rollout",
    }
    started.python(orchestrator, "--output_dir=elsewhere", **shared)
    for pid in expected:
        assert {member.pid: member.role for member in DiscoveredJob(pid).members()} == expected


def test_the_program_below_a_wrapper(started: Started) -> None:
    train = started.script("train.py", COMPUTE)
    wrapper, (program,) = started.start(
        ["bash", "-c", f"{sys.executable} -W ignore {train}; true"], 1
    )
    assert pids(DiscoveredJob(wrapper)) == {program}
    assert DiscoveredJob(wrapper).run == f"train-{wrapper}"


def test_the_name_of_the_run_is_the_one_that_was_given(started: Started) -> None:
    _, ranks = started.torchrun(rank(0, DFX_RUN="nightly"))
    assert DiscoveredJob(ranks[0]).run == "nightly"


def test_a_job_that_has_ended_has_no_members(started: Started) -> None:
    launcher, ranks = started.torchrun(rank(0), rank(1))
    job = DiscoveredJob(launcher)
    os.kill(ranks[0], signal.SIGKILL)
    until(lambda: pids(job) == {ranks[1]})  # a zombie of its launcher is no member
    started.end()
    until(lambda: pids(job) == set())


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_no_such_process() -> None:
    with pytest.raises(AttachError, match="no process with pid 4194305") as caught:
        DiscoveredJob(4194305)
    assert caught.value.exit_code == 2


def test_a_zombie_is_called_one() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(AttachError, match=f"pid {child.pid} is a zombie"):
        DiscoveredJob(child.pid)
    child.wait()


def test_a_reused_pid_is_another_process() -> None:
    own = ProcessTable().get(os.getpid())
    assert own is not None
    assert own.is_alive()
    earlier = HostProcess(own.pid, own.start_ticks - 1, own.parent, own.name)
    assert not earlier.is_alive()
    assert earlier != own


def test_a_process_of_another_user_is_no_error(started: Started) -> None:
    process = ProcessTable().get(1)
    assert process is None or isinstance(process.environment, dict)


def test_only_what_is_new_is_read_again(started: Started, monkeypatch: Any) -> None:
    table = ProcessTable()
    time.sleep(1.2)  # nothing that was there is young any more
    table.refresh()
    read: list[int] = []
    inner = table._read
    monkeypatch.setattr(table, "_read", lambda pid, *rest: (read.append(pid), inner(pid, *rest)))
    own = table.get(os.getpid())
    new, _ = started.python(started.script("train.py", COMPUTE))
    table.refresh()
    assert new in read
    assert os.getpid() not in read
    assert table.get(os.getpid()) is own
