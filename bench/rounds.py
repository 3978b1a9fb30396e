"""The same work with the guest, without it and without it again, in random order.

``on`` records everything; ``reduced`` what is left when the default budget has taken all that it
may take. ``off`` against ``again`` (A/A) says how far apart equal things are. Ranks of a torchrun
job run the blocks; the bench that started the job makes ratios of them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.estimates import bootstrap_interval, geometric_mean, median
from bench.measurement import Bar, Baseline, Result

ARMS = ("on", "reduced", "off", "again")
CLOCKS = ("wall_seconds", "cpu_seconds")
SEED = 0
MIN_ROUNDS = 4
MAX_SECONDS = 300
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]

Block = dict[str, float]  # CLOCKS, per step
Rounds = list[dict[str, Block]]  # arm -> block, of one rank


def timed(step: Callable[[], None], num_steps: int) -> Block:
    """Wall and processor seconds per step; the processor time is that of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(num_steps):
        step()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall_seconds": wall / num_steps, "cpu_seconds": cpu / num_steps}


def write_rounds(
    run_block: Callable[[str], Block], seconds: float, out: Path, arms: Sequence[str] = ARMS
) -> None:
    """Rounds until rank 0 says that it is time; rank 0 writes those of all ranks as JSON.

    The order of the arms is drawn anew in every round, the same on every rank. The first round is
    warm-up and left out.
    """
    import torch.distributed as dist

    draw = random.Random(SEED)
    rounds: Rounds = []
    end = time.monotonic() + seconds
    while _agree(go_on=time.monotonic() < end or len(rounds) < MIN_ROUNDS):
        rounds.append({arm: run_block(arm) for arm in draw.sample(arms, len(arms))})
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, rounds[1:])
    if dist.get_rank() == 0:
        out.write_text(json.dumps(gathered))


def torchrun(num_ranks: int, module_and_arguments: list[str], segments: str, **env: str) -> None:
    """A job on this machine; RuntimeError with its last lines when it fails."""
    command = [*TORCHRUN, str(num_ranks), "-m", *module_and_arguments]
    full = {**os.environ, "DFX_DIR": segments, "OMP_NUM_THREADS": "1", **env}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=full, stdout=pipe, stderr=pipe, text=True) as job:
        try:
            _, errors = job.communicate(timeout=MAX_SECONDS)
        except subprocess.TimeoutExpired:
            job.terminate()  # torchrun ends its ranks
            raise RuntimeError(f"{' '.join(command)} ran for more than {MAX_SECONDS} s") from None
    if job.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{errors[-5000:]}")


def ratios(job: str, ranks: list[Rounds]) -> list[Result]:
    """on / off, reduced / off and A/A of both clocks, each the geometric mean over rounds."""
    return [row for clock in CLOCKS for row in _ratios(job, ranks, clock)]


def _ratios(job: str, ranks: list[Rounds], clock: str) -> list[Result]:
    rounds = [
        {arm: sum(rank[arm][clock] for rank in ranks_in_round) for arm in ranks_in_round[0]}
        for ranks_in_round in zip(*ranks, strict=True)
    ]
    base = [geometric_mean([r["off"], r["again"]]) for r in rounds]
    same = [r["again"] / r["off"] for r in rounds]
    same_interval = bootstrap_interval(geometric_mean, same)
    step_ms = median([r["off"] for r in rounds]) * 1e3 / len(ranks)
    word = clock.removesuffix("_seconds")
    baseline = Baseline("off / off again (A/A)", geometric_mean(same))
    name = f"{job} step {word} time"
    rows = []
    for arm in ("on", "reduced"):
        item = [r[arm] / without for r, without in zip(rounds, base, strict=True)]
        interval = bootstrap_interval(geometric_mean, item)
        # equal arms give 1 by symmetry; overlap with the A/A interval would excuse too much
        verdict = "not distinguishable" if interval[0] <= 1 <= interval[1] else "distinguishable"
        note = f"95 % interval, {verdict} from A/A; steps of {step_ms:.0f} ms {word} per rank"
        bar = Bar(1.01, bound=interval[1])
        rows.append(_ratio(f"{name}, {arm} / off", item, interval, note, baseline, bar))
    aa_name = f"{name}, off / off again (A/A)"
    return [*rows, _ratio(aa_name, same, same_interval, "95 % interval")]


def _ratio(
    name: str,
    rounds: list[float],
    interval: tuple[float, float],
    note: str,
    baseline: Baseline | None = None,
    bar: Bar | None = None,
) -> Result:
    spread = {"low": interval[0], "high": interval[1]}
    return Result(name, geometric_mean(rounds), "x", len(rounds), spread, baseline, bar, note)


def _agree(*, go_on: bool) -> bool:
    """Rank 0 decides for all."""
    import torch
    import torch.distributed as dist

    word = torch.tensor(int(go_on))
    dist.broadcast(word, src=0)
    return bool(word)
