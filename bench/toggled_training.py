"""One rank of the demo's training that turns the guest on and off between blocks of steps.

Every block is the same work: learning rate 0 and the same random numbers. See bench/rounds.py:
python -m torch.distributed.run ... -m bench.toggled_training --seconds 60 --out FILE
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

import dfx_agent.shim as dfx
from bench.leaving_group import leave_group
from bench.rounds import ARMS, SEED, Block, timed, write_rounds
from bench.toggled_guest import WARM_UP_STEPS, ToggledGuest
from dfx_agent.commands.demo.fault_plan import FaultPlan
from dfx_agent.commands.demo.trainer import Settings, Trainer

STEPS_PER_BLOCK = 4
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

    def __init__(self, settings: Settings) -> None:
        self._trainer = Trainer(settings, FaultPlan([], dist.get_rank(), dist.get_world_size()))
        self._guest = ToggledGuest(self._trainer._parallel_policy)
        self._step = 0

    def run_block(self, arm: str) -> Block:
        self._guest.set_arm(arm)
        self._trainer._generator.manual_seed(SEED + dist.get_rank())
        for _ in range(WARM_UP_STEPS):
            self._run_step()
        dist.barrier()
        block = timed(self._run_step, STEPS_PER_BLOCK)
        self._guest.switch(is_on=True)
        return block

    def _run_step(self) -> None:
        self._step += 1
        self._trainer._run_step(self._step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts-per-rank", type=int, default=SETTINGS.prompts_per_rank)
    parser.add_argument("--group-size", type=int, default=SETTINGS.group_size)
    parser.add_argument("--arms", default=",".join(ARMS), help="default %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dfx.init(run="bench", role="trainer", framework="verl")
    dist.init_process_group("gloo")
    size = {"prompts_per_rank": options.prompts_per_rank, "group_size": options.group_size}
    toggled, arms = _Toggled(replace(SETTINGS, **size)), options.arms.split(",")
    write_rounds(toggled.run_block, options.seconds, options.out, arms)
    leave_group()
    dfx.shutdown()


if __name__ == "__main__":
    main()
