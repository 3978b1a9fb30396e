"""DDP with DataLoader workers, forked children, subprocesses and busy threads beside it."""

from __future__ import annotations

import os
import subprocess
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from bench.leaving_group import leave_group
from bench.mixed.results import Results

STEPS_BETWEEN_FORKS = 50


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((128,), float(index % 97)) / 97.0


def hash_names() -> None:
    """A thread as tokenizers and loggers have them: wakes often, computes a little."""
    while True:
        hash(tuple(range(1000)))
        time.sleep(0.01)


def fork_a_child() -> None:
    """As libraries do for a side job: it ends without running what was registered at exit."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    subprocess.run(["true"], check=True)


def main() -> None:
    dist.init_process_group("gloo")
    for _ in range(3):
        threading.Thread(target=hash_names, daemon=True).start()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Numbers(), batch_size=64, num_workers=2)
    results = Results()
    batches = iter(loader)
    step = 0
    while results.take(step, model.parameters()):
        step += 1
        batch = next(batches)
        loss = (model(batch) - batch.mean(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % STEPS_BETWEEN_FORKS == 0:
            fork_a_child()
    del batches
    del model, optimizer
    leave_group()


if __name__ == "__main__":
    main()
