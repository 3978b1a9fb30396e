"""What the guest's hooks cost a plain DDP and a plain FSDP2 training on 4 ranks.

Three answers: the guest's time taken inside the running job (in place), what its own meter reports,
and step time with and without it, interleaved.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.estimates import bootstrap_interval, median
from bench.guest_meter import metered
from bench.measurement import Result, report
from bench.rounds import ratios, torchrun
from bench.served_agent import serving

NUM_RANKS, QUICK_RANKS = 4, 2
SCRIPT = "bench.hooked_training"
JOBS = {"DDP": "ddp", "FSDP2": "fsdp2"}


def measure(*, quick: bool) -> list[Result]:
    torch.set_num_threads(1)
    num_ranks = QUICK_RANKS if quick else NUM_RANKS
    rows = []
    for job, kind in list(JOBS.items())[: 1 if quick else None]:
        rows += _own_costs(job, kind, num_ranks, num_steps=200)
        rows += _on_off(job, kind, num_ranks, seconds=0.0 if quick else 75.0)
    return rows


def _own_costs(job: str, kind: str, num_ranks: int, num_steps: int) -> list[Result]:
    """What the job timed in place, and what the guest's own meter reports."""
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        out = Path(folder, "steps.json")
        command = [SCRIPT, kind, "--steps", str(num_steps), "--out", str(out)]
        torchrun(num_ranks, command, folder, DFX_MAX_OVERHEAD="0")
        ranks = json.loads(out.read_text())
        of_all_time = _of_all_time(job, ranks)
        return [_in_place(job, ranks), of_all_time, metered(job, folder, num_ranks, of_all_time)]


def _in_place(job: str, ranks: list[dict[str, Any]]) -> Result:
    """Of the rank on which the guest takes most."""
    percents = [[100 * spent / step_ns for step_ns, spent in rank["steps"]] for rank in ranks]
    worst = max(percents, key=median)
    low, high = bootstrap_interval(median, worst)
    microseconds = max(median([spent for _, spent in rank["steps"]]) for rank in ranks) / 1e3
    watch_percent = 100 * max(rank["watch_share"] for rank in ranks)
    return Result(
        name=f"{job} guest's hooks, timed in place",
        value=median(worst),
        unit="% of step time",
        n=len(worst),
        spread={"low": low, "high": high},
        note=f"{microseconds:.0f} us per step, caches as the job leaves them, clocks included; the "
        f"guest's own thread takes {watch_percent:.3f} % of a core",
    )


def _of_all_time(job: str, ranks: list[dict[str, Any]]) -> Result:
    """The same with the steps in which a thread lost its core within a hook, as the meter counts.

    A median leaves these steps out, so that the two differ where ranks share a core.
    """
    percents = [
        100
        * sum(spent for _, spent in rank["steps"])
        / sum(step_ns for step_ns, _ in rank["steps"])
        for rank in ranks
    ]
    return Result(
        name=f"{job} guest's hooks, timed in place, of all time",
        value=max(percents),
        unit="% of the time",
        n=len(percents),
        spread={"low": min(percents), "high": max(percents)},
        note="of the rank on which they take most; smallest and largest of the ranks",
    )


def _on_off(job: str, kind: str, num_ranks: int, seconds: float) -> list[Result]:
    with serving() as agent, tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        out = Path(folder, "rounds.json")
        arguments = [SCRIPT, kind, "--seconds", str(seconds), "--out", str(out)]
        torchrun(num_ranks, arguments, agent.directory, DFX_MAX_OVERHEAD="0")
        return ratios(job, json.loads(out.read_text()))


if __name__ == "__main__":
    report(measure)
