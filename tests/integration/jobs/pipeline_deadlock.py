"""Two ranks: healthy steps that pass activations on, then rank 0 in all_reduce and 1 in recv."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(20):
    layer(torch.ones(2, 4)).sum().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(3), 0)
if rank == 0:
    dist.all_reduce(torch.ones(1))
else:
    dist.recv(torch.ones(3), 0)
