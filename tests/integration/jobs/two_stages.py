"""Four gloo ranks, 2 pipeline stages x 2 data places, as DeviceMesh makes them. Until a file comes.

two_stages.py STOP [megatron]: with the second word the places stand where Megatron has them.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def place_as_megatron(stage: int, data: int) -> None:
    state = types.ModuleType("megatron.core.parallel_state")
    for name, index in (("pipeline_model_parallel", stage), ("data_parallel", data)):
        setattr(state, f"get_{name}_rank", lambda index=index: index)
        setattr(state, f"get_{name}_world_size", lambda: 2)
    state.get_tensor_model_parallel_rank = lambda: 1 / 0
    sys.modules[state.__name__] = state


def main(stop: Path) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    stage, data = mesh.get_coordinate()
    if "megatron" in sys.argv:
        place_as_megatron(stage, data)
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    is_over = torch.zeros(1)
    peer = dist.get_rank() ^ 2
    while not is_over.item():
        activations = torch.ones(4, 64)
        if stage == 1:
            dist.recv(activations, peer, group=mesh["pp"].get_group())
        for _ in range(1 + stage):
            layer(activations).sum().backward()
        if stage == 0:
            dist.send(activations, peer, group=mesh["pp"].get_group())
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())
        optimizer.step()
        optimizer.zero_grad()
        is_over.fill_(float(stop.exists()))
        dist.all_reduce(is_over)
    dist.destroy_process_group()


main(Path(sys.argv[1]))
