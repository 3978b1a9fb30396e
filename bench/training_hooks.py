"""What the guest's hooks cost a plain DDP and a plain FSDP2 training on 4 ranks.

Three answers: what was recorded times what each takes in a loop (accounted), the guest's time
taken inside the running job (in place), and step time with and without it, interleaved.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.estimates import bootstrap_interval, median
from bench.event_costs import (
    MAX_PERCENT,
    EventCosts,
    Step,
    event_costs,
    own_cost,
    steps_of_ranks,
)
from bench.measurement import Bar, Baseline, Result, report
from bench.rounds import ratios, torchrun
from bench.served_agent import serving

NUM_RANKS, QUICK_RANKS = 4, 2
SCRIPT = "bench.hooked_training"
JOBS = {"DDP": "ddp", "FSDP2": "fsdp2"}


def measure(*, quick: bool) -> list[Result]:
    torch.set_num_threads(1)
    costs = event_costs(quick=quick)
    num_ranks = QUICK_RANKS if quick else NUM_RANKS
    rows = []
    for job, kind in list(JOBS.items())[: 1 if quick else None]:
        before, timed, recorded = costs, *_recorded(kind, num_ranks, num_steps=9 if quick else 100)
        costs = costs if quick else event_costs(quick=False)
        rows += _own_costs(job, timed, recorded, before.between(costs))
        rows += _on_off(job, kind, num_ranks, seconds=0.0 if quick else 75.0)
    return rows


def _recorded(
    kind: str, num_ranks: int, num_steps: int
) -> tuple[list[dict[str, Any]], list[list[Step]]]:
    """By rank: what the job timed in place, and the events of its steps."""
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        out = Path(folder, "steps.json")
        torchrun(num_ranks, [SCRIPT, kind, "--steps", str(num_steps), "--out", str(out)], folder)
        return json.loads(out.read_text()), steps_of_ranks(folder, num_ranks)


def _own_costs(
    job: str, timed: list[dict[str, Any]], recorded: list[list[Step]], costs: EventCosts
) -> list[Result]:
    watch_percent = 100 * max(rank["watch_share"] for rank in timed)
    what = f"{len(timed)} ranks; the guest's thread beside it takes {watch_percent:.3f} % of a core"
    accounted = own_cost(job, recorded, costs, what)
    return [accounted, _in_place(job, timed, accounted)]


def _in_place(job: str, ranks: list[dict[str, Any]], accounted: Result) -> Result:
    """Of the rank on which the guest takes most."""
    percents = [[100 * spent / step_ns for step_ns, spent in rank["steps"]] for rank in ranks]
    worst = max(percents, key=median)
    low, high = bootstrap_interval(median, worst)
    microseconds = max(median([spent for _, spent in rank["steps"]]) for rank in ranks) / 1e3
    return Result(
        name=f"{job} guest's own cost, timed in place",
        value=median(worst),
        unit="% of step time",
        n=len(worst),
        spread={"low": low, "high": high},
        baseline=Baseline("accounted", accounted.value),
        bar=Bar(MAX_PERCENT),
        note=f"{microseconds:.0f} us per step, caches as the job leaves them, clocks included",
    )


def _on_off(job: str, kind: str, num_ranks: int, seconds: float) -> list[Result]:
    with serving() as agent, tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        out = Path(folder, "rounds.json")
        arguments = [SCRIPT, kind, "--seconds", str(seconds), "--out", str(out)]
        torchrun(num_ranks, arguments, agent.directory)
        return ratios(job, json.loads(out.read_text()))


if __name__ == "__main__":
    report(measure)
