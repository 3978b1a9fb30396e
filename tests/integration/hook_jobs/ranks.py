"""Starts the jobs of this folder, one process per rank, and collects what their checks say."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

JOBS = Path(__file__).resolve().parent
sys.path.insert(0, str(JOBS.parent))
from live_processes import job_environment, unused_port  # noqa: E402 (beside this folder)

from dfx_agent.attach.payload import write_preload_folder  # noqa: E402

PYTHON = os.environ.get("DFX_TEST_JOB_PYTHON", sys.executable)
JOB_SECONDS = 600  # against a job without an end; says nothing about speed
NUM_RANKS = {
    "plain_loop": 1,
    "optimizers": 1,
    "manners": 1,
    "training": 2,
    "compiled": 2,
    "late": 2,
    "late_compiled": 2,
    "dying": 2,
    "every_operation": 3,
}

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
        reported = json.loads(report.read_text()) if report.exists() else {}
        for check in checks(job):
            results.setdefault(check, []).append(
                reported.get(check, f"not reached:\n{output[-3000:]}")
            )
    return results


def run_late(job: str, num_ranks: int, folder: Path, **changes: str) -> Results:
    """Not preloaded: the guest can be imported, and is, long after the job began to train."""
    guest = Path(write_preload_folder(str(folder))) / "guest"
    return run_ranks(job, num_ranks, folder, PYTHONPATH=str(guest), DFX_AGENT="", **changes)


def assert_well(results: Results, check: str) -> None:
    wrong = [f"rank {rank}: {text}" for rank, text in enumerate(results[check]) if text]
    assert not wrong, "\n".join(wrong)


def started_once(folders, **environment: str) -> Callable[[str], Results]:
    """What the checks of a job say; ``folders`` is pytest's tmp_path_factory."""

    @functools.cache
    def results(job: str) -> Results:
        run = run_late if job.startswith("late") else run_ranks
        return run(job, NUM_RANKS[job], folders.mktemp(job), **environment)

    return results
