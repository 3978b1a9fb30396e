"""One rank of a DDP job that knows nothing of us; it writes when each of its steps ended.

The file ``$BENCH_STEPS.<rank>`` holds the monotonic clock, 64 bits of nanoseconds a step.
"""

from __future__ import annotations

import os
import struct
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, NUM_LAYERS, BATCH = 256, 4, 64


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = [layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(BATCH, WIDTH)
    with open(f"{os.environ['BENCH_STEPS']}.{dist.get_rank()}", "wb", buffering=0) as out:
        while True:
            model(batch).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            out.write(struct.pack("q", time.monotonic_ns()))


if __name__ == "__main__":
    main()
