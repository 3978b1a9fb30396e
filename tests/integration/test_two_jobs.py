"""Two torchrun jobs under one ``dfx-agent run``: each has a rank 0, and neither is the other's."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
from live_processes import TORCHRUN, job_environment, running, until, unused_port

JOB = str(Path(__file__).parent / "jobs" / "plain_ddp.py")
NUM_RANKS = 2


def command(num_steps: int) -> str:
    return shlex.join([*TORCHRUN, str(NUM_RANKS), JOB, str(num_steps)])


def test_two_jobs_in_one_process_tree_do_not_mix(tmp_path):
    """One ends in order while the other goes on: no hang, no crash, no rank 0 that is late."""
    jobs = f"{command(250)} & {command(100_000)} & wait"
    environment = job_environment(DFX_DIR=str(tmp_path / "segments"))
    with running(tmp_path, unused_port(), ["bash", "-c", jobs], environment) as agent:

        def both_train():
            ranks = agent.ranks()
            is_there = len(ranks) == 2 * NUM_RANKS and all(r["step"] for r in ranks.values())
            return ranks if is_there else None

        ranks = until(both_train, "steps of both jobs", 90)
        assert len({row["pid"] for row in ranks.values()}) == 2 * NUM_RANKS
        assert sorted(label.partition(".")[0] for label in ranks) == ["0", "0", "1", "1"]

        def one_has_ended():
            rows = agent.ranks().values()
            ended, living = ([r for r in rows if r["state"] == s] for s in ("exited", "live"))
            is_over = len(ended) == len(living) == NUM_RANKS
            return living if is_over and min(r["step"] for r in living) > 300 else None

        living = until(one_has_ended, "the end of one job", 90)
        assert {row["pid"] for row in living} < {row["pid"] for row in ranks.values()}

        def told_of_every_end():
            (run,) = agent.snapshot()["runs"]
            verdicts = {verdict["kind"]: verdict for verdict in run["verdicts"]}
            return None if "shutting down" in verdicts["crash"]["summary"] else verdicts

        verdicts = until(told_of_every_end, "the exit codes of that job", 90)
        assert verdicts["hang"]["state"] == verdicts["crash"]["state"] == "clear"
        accused = verdicts["straggler"]["ranks"]
        assert {label.partition(".")[0] for label in accused} <= {"1"}, "rank 1 is late by design"
