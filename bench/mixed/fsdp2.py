"""FSDP2 in bfloat16 with four micro-batches a step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from bench.leaving_group import leave_group
from bench.mixed.results import Results

NUM_MICRO_BATCHES = 4


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True) for _ in range(3))
    )
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.Generator().manual_seed(dist.get_rank())
    results = Results()
    step = 0
    while results.take(step, model.parameters()):
        step += 1
        for micro in range(NUM_MICRO_BATCHES):
            model.set_requires_gradient_sync(micro == NUM_MICRO_BATCHES - 1)
            inputs = torch.randn(4, 32, 128, generator=data)
            loss = (model(inputs).float() - inputs).square().mean() / NUM_MICRO_BATCHES
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer
    leave_group()


if __name__ == "__main__":
    main()
