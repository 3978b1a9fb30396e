"""DDP in which SLOW_RANK computes SLOW_FACTOR times as much as its peers from SLOW_STEP on."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.leaving_group import leave_group
from bench.mixed.results import Results

NUM_ROUNDS = 60  # of work in a step, next to which the model itself takes little


def main() -> None:
    slow_rank, slow_step = int(os.environ["SLOW_RANK"]), int(os.environ["SLOW_STEP"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    matrix = torch.randn(384, 384)
    results = Results()
    step = 0
    while results.take(step, model.parameters()):
        step += 1
        is_slow = dist.get_rank() == slow_rank and step >= slow_step
        factor = float(os.environ["SLOW_FACTOR"]) if is_slow else 1.0
        for _ in range(round(NUM_ROUNDS * factor)):
            torch.tanh(matrix @ matrix)
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer
    leave_group()


if __name__ == "__main__":
    main()
