"""The guest's hooks in real torch jobs: gloo processes, DDP, FSDP2, compiled graphs, late attach.

Each job of hook_jobs/ is started once; its checks run inside, on every rank, and are told here one
by one. $DFX_TEST_JOB_PYTHON runs the jobs with another interpreter, that is another torch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from live_processes import HERE, job_environment, unused_port

from dfx_agent.attach.payload import write_preload_folder

PYTHON = os.environ.get("DFX_TEST_JOB_PYTHON", sys.executable)
JOBS = HERE / "hook_jobs"
JOB_SECONDS = 150

Results = dict[str, list[str]]  # check -> what each rank says, "" for well


def checks(job: str) -> list[str]:
    return re.findall(r"^def (check_\w+)", (JOBS / f"{job}.py").read_text(), re.MULTILINE)


def environment(folder: Path, rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """Of one rank, with the guest preloaded as ``dfx-agent run`` does it."""
    return job_environment(
        DFX_AGENT="1",
        DFX_DIR=str(folder / "segments"),
        DFX_RING_RECORDS=str(1 << 18),
        DFX_TEST_REPORT=str(folder / "report"),
        PYTHONPATH=write_preload_folder(str(folder)),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(num_ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCH_CPP_LOG_LEVEL="ERROR",
    )


def run_ranks(job: str, num_ranks: int, folder: Path, **changes: str) -> Results:
    """``num_ranks`` processes of one job; what its checks say, and its output where it died."""
    port = unused_port()
    ranks = [
        subprocess.Popen(
            [PYTHON, "-W", "ignore", str(JOBS / f"{job}.py")],
            env=environment(folder, rank, num_ranks, port) | changes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    try:
        outputs = [rank.communicate(timeout=JOB_SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    results: Results = {}
    for rank, output in enumerate(outputs):
        report = folder / f"report.{rank}"
        told = json.loads(report.read_text()) if report.exists() else {}
        for check in checks(job):
            results.setdefault(check, []).append(told.get(check, f"not reached:\n{output[-3000:]}"))
    return results


def assert_well(results: Results, check: str) -> None:
    wrong = [f"rank {rank}: {text}" for rank, text in enumerate(results[check]) if text]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def every_operation(tmp_path_factory) -> Results:
    return run_ranks("every_operation", 3, tmp_path_factory.mktemp("every_operation"))


@pytest.mark.parametrize("check", checks("every_operation"))
def test_every_operation(every_operation, check):
    assert_well(every_operation, check)


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Results:
    return run_ranks("training", 2, tmp_path_factory.mktemp("training"))


@pytest.mark.parametrize("check", checks("training"))
def test_training(training, check):
    assert_well(training, check)


@pytest.fixture(scope="module")
def dying(tmp_path_factory) -> Results:
    return run_ranks("dying", 2, tmp_path_factory.mktemp("dying"))


@pytest.mark.parametrize("check", checks("dying"))
def test_dying(dying, check):
    survivor, dead = dying[check]
    assert not survivor, survivor
    assert dead.startswith("not reached")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Results:
    return run_ranks("compiled", 2, tmp_path_factory.mktemp("compiled"))


@pytest.mark.parametrize("check", checks("compiled"))
def test_compiled(compiled, check):
    assert_well(compiled, check)


@pytest.fixture(scope="module")
def plain_loop(tmp_path_factory) -> Results:
    return run_ranks("plain_loop", 1, tmp_path_factory.mktemp("plain_loop"))


@pytest.mark.parametrize("check", checks("plain_loop"))
def test_plain_loop(plain_loop, check):
    assert_well(plain_loop, check)


@pytest.fixture(scope="module")
def manners(tmp_path_factory) -> Results:
    return run_ranks("manners", 1, tmp_path_factory.mktemp("manners"))


@pytest.mark.parametrize("check", checks("manners"))
def test_manners(manners, check):
    assert_well(manners, check)


@pytest.fixture(scope="module")
def late(tmp_path_factory) -> Results:
    """Not preloaded: the guest can be imported, and is, long after the job began to train."""
    folder = tmp_path_factory.mktemp("late")
    guest = Path(write_preload_folder(str(folder))) / "guest"
    return run_ranks("late", 2, folder, PYTHONPATH=str(guest), DFX_AGENT="")


@pytest.mark.parametrize("check", checks("late"))
def test_late(late, check):
    assert_well(late, check)
