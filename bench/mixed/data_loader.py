"""DDP bound by its data loader: each batch takes every rank's single worker the same 0.2 s."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from bench.leaving_group import leave_group
from bench.mixed.results import Results

BATCH_SIZE, BATCH_SECONDS, WIDTH = 64, 0.2, 128


class Samples(Dataset):
    """Random vectors that take time to read."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(BATCH_SECONDS / BATCH_SIZE)
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = iter(DataLoader(Samples(), BATCH_SIZE, num_workers=1))
    results = Results()
    step = 0
    while results.take(step, model.parameters()):
        step += 1
        model(next(batches)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer, batches
    leave_group()


if __name__ == "__main__":
    main()
