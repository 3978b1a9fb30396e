"""A plain DDP job, of which one rank fails on request. RANK and the like come from outside.

two_hosts.py FAULT STEP: rank 3, from STEP on
  none        nothing happens
  slow        computes longer in every step
  mismatch    broadcasts where the others reduce, in that step
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dfx_agent.shim as dfx

FAULT, STEP = sys.argv[1], int(sys.argv[2])
SECONDS, MORE_SECONDS = 0.1, 0.1


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def main() -> None:
    torch.set_num_threads(1)
    dfx.init()
    dist.init_process_group("gloo")
    is_odd = dist.get_rank() == 3
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = torch.zeros(1)
    for step in range(1, 10**9):
        dfx.set_step(step)
        is_due = is_odd and step >= STEP
        with dfx.stage("rollout"):
            time.sleep(SECONDS)
            compute(MORE_SECONDS if is_due and FAULT == "slow" else 0.0)
        model(torch.randn(64, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_due and FAULT == "mismatch" and step == STEP:
            dist.broadcast(seen, src=3)
        else:
            dist.all_reduce(seen)
        print("step", step, flush=True)


main()
