"""A plain torchrun job: no framework, nothing of ours. Rank 1 comes 20 ms late to every step."""

import gc
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NUM_MICRO_BATCHES = 2


def train() -> None:
    layers = [torch.nn.Linear(128, 128) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = torch.zeros(1)
    for _ in range(int(sys.argv[1])):
        time.sleep(0.02 if dist.get_rank() == 1 else 0.0)
        for _ in range(NUM_MICRO_BATCHES):
            loss = (model(torch.randn(64, 128)) - 1).square().mean()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(seen)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train()
    gc.collect()  # a DDP model that lives longer than its group may never end (docs/limits.md)
    dist.destroy_process_group()


main()
