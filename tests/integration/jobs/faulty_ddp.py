"""A plain DDP job in which one rank can be made to fail. RANK and the like come from outside.

faulty_ddp.py FAULT STEP [SECONDS]: at STEP
  none        nothing happens
  forward     rank 1 sleeps in forward
  checkpoint  rank 0 saves for SECONDS while the others wait in a barrier
  mismatch    rank 1 broadcasts where the others reduce
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FAULT, STEP = sys.argv[1], int(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 3600.0


class Sleepy(torch.nn.Linear):
    """A layer that can stop."""

    must_sleep = False

    def forward(self, x):
        if self.must_sleep:
            time.sleep(SECONDS)
        return super().forward(x)


def save_checkpoint() -> None:
    time.sleep(SECONDS)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layer = Sleepy(64, 64)
    model = DistributedDataParallel(torch.nn.Sequential(layer, torch.nn.Linear(64, 64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = torch.zeros(1)
    for step in range(1, 10**9):
        is_due = step == STEP
        layer.must_sleep = is_due and FAULT == "forward" and rank == 1
        model(torch.randn(64, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.1)
        if is_due and FAULT == "mismatch" and rank == 1:
            dist.broadcast(seen, src=1)
        else:
            dist.all_reduce(seen)
        if is_due and FAULT == "checkpoint":
            if rank == 0:
                save_checkpoint()
            dist.barrier()
        print("step", step, flush=True)


main()
