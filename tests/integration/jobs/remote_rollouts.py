"""DDP whose rank 0 fetches each step's rollouts over HTTP and hands them to the others.

``remote_rollouts.py FOLDER``: the server's port is in FOLDER/port. Steps until it is killed.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder = Path(sys.argv[1])


def fetch_rollouts() -> float:
    url = f"http://127.0.0.1:{(folder / 'port').read_text()}/generate"
    with urllib.request.urlopen(urllib.request.Request(url, data=b"prompts")) as answer:
        return float(answer.read())


dist.init_process_group("gloo", timeout=dt.timedelta(hours=1))
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while not (folder / "port").exists():
    time.sleep(0.05)
for step in range(1_000_000):
    rollouts = torch.zeros(1)
    if dist.get_rank() == 0:
        rollouts += fetch_rollouts()
    dist.broadcast(rollouts, 0)
    optimizer.zero_grad()
    (model(torch.ones(4, 8)).pow(2).mean() + 0 * rollouts.sum()).backward()
    optimizer.step()
    if dist.get_rank() == 0:
        (folder / "step.tmp").write_text(str(step))
        (folder / "step.tmp").rename(folder / "step")
    time.sleep(0.05)
