"""Two gloo ranks that hang after three collectives. RANK and the like come from outside.

stuck_ranks.py mismatch | absent: rank 1 broadcasts where rank 0 reduces, or does not come.
"""

import sys
import time

import torch
import torch.distributed as dist


def main(fault: str) -> None:
    dist.init_process_group("gloo")
    gradients = torch.ones(8)
    for _ in range(3):
        dist.all_reduce(gradients)
    is_first = dist.get_rank() == 0
    print("hangs", flush=True)
    if is_first:
        dist.all_reduce(gradients)
    elif fault == "mismatch":
        dist.broadcast(gradients, src=0)
    time.sleep(3600)


main(sys.argv[1])
