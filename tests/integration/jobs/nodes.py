"""A plain torchrun job whose work is sleep, so that hosts of one machine do not starve each other.

nodes.py ORDERS [SECONDS]: the file ORDERS says what goes wrong from the next step on, read in each:
  slow RANK RATIO     its forward takes so many times longer
  mismatch RANK       it broadcasts where the others reduce, once
  end                 all ranks end

With ROLE it says itself that it is a rank, before it waits for the others.
"""

import gc
import os
import sys
import time
from contextlib import suppress

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ORDERS, SECONDS = sys.argv[1], float((sys.argv[2:] or ["0.5"])[0])


class Work(torch.nn.Linear):
    """Takes as long as it is told to."""

    seconds = SECONDS

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return super().forward(batch)


def orders() -> list[str]:
    """What concerns this rank."""
    with suppress(OSError), open(ORDERS) as file:
        words = file.read().split()
        if words[:1] == ["end"] or words[1:2] == [str(dist.get_rank())]:
            return words
    return []


def train(work: Work) -> None:
    model = DistributedDataParallel(work)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = torch.zeros(1)
    is_over = torch.zeros(1)
    before = ""
    while not is_over:
        what, *more = orders() or [""]
        if what != before:
            print(what or "healthy", "from step", int(step) + 1, flush=True)
            before = what
        work.seconds = SECONDS * (float(more[1]) if what == "slow" else 1.0)
        model(torch.randn(16, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        is_over = torch.tensor([float(what == "end")])
        if what == "mismatch":
            os.unlink(ORDERS)
            dist.broadcast(is_over, src=dist.get_rank())
        else:
            dist.all_reduce(is_over)
        print("step", int(step), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    if "ROLE" in os.environ:
        import dfx_agent.shim as dfx

        dfx.init(role=os.environ["ROLE"])
    dist.init_process_group("gloo")
    train(Work(16, 16))
    gc.collect()  # a DDP model that lives longer than its group may never end (docs/limits.md)
    dist.destroy_process_group()


main()
