"""One rank of a plain training loop, DDP or FSDP2, that knows nothing of the guest but ``init``.

With ``--seconds`` the guest comes and goes between blocks of steps (bench/rounds.py); with
``--steps`` it stays, finds the model itself, and is timed in place:
python -m torch.distributed.run ... -m bench.hooked_training fsdp2 --steps 100 --out FILE
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dfx_agent.shim as dfx
from bench.leaving_group import leave_group
from bench.rounds import SEED, Block, timed, write_rounds
from bench.timed_in_place import SETTLE_SECONDS, GuestClock, watch_seconds
from bench.toggled_guest import WARM_UP_STEPS, ToggledGuest

NUM_LAYERS = 4
WIDTH, NUM_HEADS = 256, 4
BATCH, LENGTH = 4, 32
STEPS_PER_BLOCK = 6
MAX_GRAD_NORM = 1.0


class Job:
    """A 4-layer transformer on fixed random input; learning rate 0, so every step is the same."""

    def __init__(self, kind: str, *more_layers: nn.Module) -> None:
        torch.manual_seed(SEED)
        layers = [
            nn.TransformerEncoderLayer(WIDTH, NUM_HEADS, 4 * WIDTH, 0.0, batch_first=True)
            for _ in range(NUM_LAYERS)
        ]
        model = nn.Sequential(*layers, *more_layers)
        self.model = _sharded(model) if kind == "fsdp2" else DistributedDataParallel(model)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        self._input = torch.randn(BATCH, LENGTH, WIDTH)

    def step(self) -> None:
        loss = self.model(self._input).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()


def _sharded(model: nn.Sequential) -> nn.Module:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("ddp", "fsdp2"))
    parser.add_argument("--seconds", type=float, help="turn the guest on and off for so long")
    parser.add_argument("--steps", type=int, default=0, help="or leave it on for so many steps")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    guest_clock = GuestClock()
    if options.steps:
        guest_clock.start()
    dfx.init(run="bench", role="trainer")
    dist.init_process_group("gloo")
    _train(options, guest_clock)
    leave_group()
    dfx.shutdown()


def _train(options: argparse.Namespace, guest_clock: GuestClock) -> None:
    job = Job(options.kind)
    if options.seconds is None:
        _run_steps(job, options.steps, guest_clock, options.out)
    else:
        guest = ToggledGuest(job.model)
        write_rounds(lambda arm: _run_block(job, guest, arm), options.seconds, options.out)
        guest.switch(is_on=True)


def _run_block(job: Job, guest: ToggledGuest, arm: str) -> Block:
    guest.set_arm(arm)
    for _ in range(WARM_UP_STEPS):
        job.step()
    dist.barrier()
    return timed(job.step, STEPS_PER_BLOCK)


def _run_steps(job: Job, num_steps: int, guest_clock: GuestClock, out: Path) -> None:
    """Ranks write the wall time and the guest's time of each step, and its thread's share."""
    for _ in range(WARM_UP_STEPS):
        job.step()
    time.sleep(SETTLE_SECONDS)  # its looks for models are over
    steps = []
    begin, before = time.monotonic(), watch_seconds()
    for _ in range(num_steps):
        step_begin, spent_before = time.perf_counter_ns(), guest_clock.spent_ns
        job.step()
        spent = guest_clock.spent_ns - spent_before
        steps.append((time.perf_counter_ns() - step_begin, spent))
    share = (watch_seconds() - before) / (time.monotonic() - begin)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"steps": steps, "watch_share": share})
    if dist.get_rank() == 0:
        out.write_text(json.dumps(gathered))


if __name__ == "__main__":
    main()
