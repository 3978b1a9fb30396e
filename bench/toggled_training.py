"""One rank of the demo's training that turns the guest on and off between blocks of steps.

Every block is the same work: learning rate 0 and the same random numbers. A round is three blocks
in random order, ``on``, ``off`` and ``again`` (off once more), the same order on every rank. Rank 0
writes the blocks of all ranks as JSON: python -m torch.distributed.run ... -m
bench.toggled_training --seconds 60 --out FILE
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dfx_agent.shim as dfx
from dfx_agent.demo.fault_plan import FaultPlan
from dfx_agent.demo.trainer import Settings, Trainer
from dfx_agent.shim import recorder

ARMS = ("on", "off", "again")
STEPS_PER_BLOCK = 2
SEED = 0
SETTINGS = Settings(
    seed=SEED,
    num_steps=0,
    prompts_per_rank=1,
    group_size=4,
    learning_rate=0.0,
    checkpoint_every=0,
    validate_every=0,
    checkpoint_folder=Path(os.devnull),
)


class _Toggled:
    """The trainer with a guest that comes and goes, as a job that never called ``init``."""

    def __init__(self) -> None:
        self._trainer = Trainer(SETTINGS, FaultPlan([], dist.get_rank(), dist.get_world_size()))
        self._writer = recorder.current
        self._step = 0

    def run_block(self, arm: str) -> dict[str, float]:
        """Wall and processor seconds per step; the processor time is that of all threads."""
        recorder.current = self._writer if arm == "on" else None
        self._trainer._generator.manual_seed(SEED + dist.get_rank())
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(STEPS_PER_BLOCK):
            self._step += 1
            self._trainer._run_step(self._step)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        recorder.current = self._writer
        return {"wall_seconds": wall / STEPS_PER_BLOCK, "cpu_seconds": cpu / STEPS_PER_BLOCK}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dfx.init(run="bench", role="trainer", framework="verl")
    dist.init_process_group("gloo")
    rounds = _run(_Toggled(), options.seconds)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, rounds)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(gathered))
    dist.destroy_process_group()
    dfx.shutdown()


def _run(toggled: _Toggled, seconds: float) -> list[dict[str, dict[str, float]]]:
    """Rounds of {arm: block}; the first round is warm-up and left out."""
    draw = random.Random(SEED)
    rounds: list[dict[str, dict[str, float]]] = []
    end = time.monotonic() + seconds
    while _agree(go_on=time.monotonic() < end):
        arms = draw.sample(ARMS, len(ARMS))
        rounds.append({arm: toggled.run_block(arm) for arm in arms})
    return rounds[1:]


def _agree(*, go_on: bool) -> bool:
    """Rank 0 decides for all."""
    word = torch.tensor(int(go_on))
    dist.broadcast(word, src=0)
    return bool(word)


if __name__ == "__main__":
    main()
