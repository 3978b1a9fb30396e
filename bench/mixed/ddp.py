"""Plain DDP: a classifier on random data."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.leaving_group import leave_group
from bench.mixed.results import Results


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model = DistributedDataParallel(nn.Sequential(body, nn.Linear(1024, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.Generator().manual_seed(dist.get_rank())
    results = Results()
    step = 0
    while results.take(step, model.parameters()):
        step += 1
        inputs = torch.randn(128, 256, generator=data)
        labels = inputs[:, :10].argmax(dim=1)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer
    leave_group()


if __name__ == "__main__":
    main()
