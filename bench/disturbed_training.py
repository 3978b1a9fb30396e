"""One rank of a plain DDP training in which now and then one rank is slower, until it is ended.

The delay is a fifth of an undisturbed step, taken as processor time inside forward. It is the same
schedule for whoever watches: python -m torch.distributed.run ... -m bench.disturbed_training
--trials 4 --out FILE; the file says the seconds that are added.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dfx_agent.shim as dfx
from bench.estimates import median
from bench.hooked_training import Job

WARM_UP_STEPS, MEASURED_STEPS = 5, 10
NUM_UNDISTURBED, NUM_DELAYED = 24, 12
DELAY_SHARE = 0.2


class Delay(nn.Module):
    """Computes nothing for ``seconds``, and hands its input on."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def forward(self, hidden: Tensor) -> Tensor:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return hidden


def first_delayed_step(trial: int) -> int:
    """Steps count from 1, trials from 0."""
    return (trial + 1) * NUM_UNDISTURBED + trial * NUM_DELAYED + 1


def delayed_rank(step: int, num_trials: int, num_ranks: int) -> int | None:
    """Who is slow in this step: each rank in turn, the last one first."""
    for trial in range(num_trials):
        if 0 <= step - first_delayed_step(trial) < NUM_DELAYED:
            return (num_ranks - 1 - trial) % num_ranks
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dfx.init(run="bench", role="trainer")
    dist.init_process_group("gloo")
    delay = Delay()
    job = Job("ddp", delay)
    delay_seconds, step = _measure(job, options.out), WARM_UP_STEPS + MEASURED_STEPS
    while True:
        step += 1
        is_slow = delayed_rank(step, options.trials, dist.get_world_size()) == dist.get_rank()
        delay.seconds = delay_seconds if is_slow else 0.0
        job.step()


def _measure(job: Job, out: Path) -> float:
    """Seconds to add: rank 0 says it to all, and to the file."""
    seconds = []
    for _ in range(WARM_UP_STEPS + MEASURED_STEPS):
        begin = time.perf_counter()
        job.step()
        seconds.append(time.perf_counter() - begin)
    word = torch.tensor(DELAY_SHARE * median(seconds[WARM_UP_STEPS:]))
    dist.broadcast(word, src=0)
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"delay_seconds": float(word)}))
    return float(word)


if __name__ == "__main__":
    main()
