"""Two pipeline stages by torch's own schedule: point-to-point sends between the ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from bench.leaving_group import leave_group
from bench.mixed.results import Results

NUM_MICRO_BATCHES, WIDTH = 4, 512


def main() -> None:
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    part = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    stage = PipelineStage(part, rank, num_ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, NUM_MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4)
    data = torch.Generator().manual_seed(7)
    results = Results()
    step = 0
    while results.take(step, part.parameters()):
        step += 1
        inputs = torch.randn(128, WIDTH, generator=data)
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=inputs)
        optimizer.step()
        optimizer.zero_grad()
    leave_group()


if __name__ == "__main__":
    main()
