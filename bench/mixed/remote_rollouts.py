"""An asynchronous trainer: a thread fetches rollouts over HTTP, one step ahead of DDP."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import urllib.request

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.leaving_group import leave_group
from bench.mixed.results import Results


def fetch(url: str, rollouts: queue.Queue[list[float]], num_ranks: int, rank: int) -> None:
    number = rank
    while True:
        with urllib.request.urlopen(f"{url}/{number}", timeout=600) as answer:
            rollouts.put(json.load(answer))
        number += num_ranks


def main() -> None:
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    command = [sys.executable, "-m", "bench.mixed.rollout_server"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    rollouts: queue.Queue[list[float]] = queue.Queue(maxsize=1)
    threading.Thread(target=fetch, args=(url, rollouts, num_ranks, rank), daemon=True).start()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    results = Results()
    step = 0
    while results.take(step, model.parameters()):
        step += 1
        batch = torch.tensor(rollouts.get())
        loss = (model(batch) - batch.mean()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    server.kill()
    server.wait()
    del model, optimizer
    leave_group()


if __name__ == "__main__":
    main()
