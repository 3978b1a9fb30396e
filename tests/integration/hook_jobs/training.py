"""Two ranks train small models in every way torch offers; each checks what it recorded."""

from __future__ import annotations

import copy
import io
import pickle
import time

import torch
import torch.distributed as dist
from seen import (
    DEVICE,
    checks_of,
    collectives,
    counted,
    join,
    leave,
    num_guest_errors,
    open_now,
    report,
    scalars,
    seen,
    stages,
    steps,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dfx_agent.shim as dfx
from dfx_agent.shim.torch import collectives as guest
from dfx_agent.shim.torch import ddp, modules
from dfx_agent.shim.torch.hooks import torch_hooks
from dfx_agent.wire.records import COLLECTIVE

HOST_WAITS = DEVICE == "cpu"
WIDTH = 16


class Branches(nn.Module):
    """Uses one of two layers, as told: parameters without a gradient in some passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        self.use_first = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(x) if self.use_first else self.second(x))


class Tied(nn.Module):
    """One weight, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)]).to(DEVICE)


def x() -> torch.Tensor:
    return torch.ones(4, WIDTH, device=DEVICE)


def backward(model: nn.Module, inputs: torch.Tensor | None = None) -> None:
    model(x() if inputs is None else inputs).square().mean().backward()


def found(model: nn.Module) -> None:
    """As the watch thread does when there is news, without waiting for it."""
    modules.follow([model])


def gradients(rows) -> list:
    return [row for row in rows if row.name and row.name.startswith("ddp_gradients@")]


def number() -> int:
    return guest.group_of(dist.group.WORLD).sequence()


def check_the_watch_thread_finds_a_model_by_itself():
    model = DistributedDataParallel(small())
    deadline = time.monotonic() + 20
    for _ in range(10_000):
        backward(model)
        is_over = bool(gradients(collectives())) or time.monotonic() > deadline
        is_over = torch.tensor(float(is_over), device=DEVICE)
        dist.all_reduce(is_over)
        if is_over:
            break
        time.sleep(0.01)
    assert time.monotonic() < deadline
    seen()


def check_ddp_is_one_collective_per_backward():
    model = DistributedDataParallel(small())
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    found(model)
    backward(model)
    for parameter_hooks in (p._post_accumulate_grad_hooks for p in model.parameters()):
        assert len(parameter_hooks or ()) <= 1
    seen()
    for _ in range(5):
        backward(model)
        (row,) = gradients(rows := seen())
        assert row.kind == COLLECTIVE
        assert (row.number, row.value) == (number(), num_bytes)
        assert (row.is_blocking, row.has_failed) == (HOST_WAITS, False)
        (parent,) = [other for other in rows if other.name == "backward"]
        assert parent.begin_ns <= row.begin_ns <= row.end_ns <= parent.end_ns
        if HOST_WAITS:
            assert row.parent == parent.span
        assert stages(rows) == ["forward", "backward"]


def check_no_sync_reduces_nothing():
    model = DistributedDataParallel(small())
    found(model)
    backward(model)
    seen()
    with model.no_sync():
        for _ in range(3):
            backward(model)
    assert gradients(rows := seen()) == []
    assert counted(rows, "micro_batches") == 3
    backward(model)
    assert len(gradients(seen())) == 1
    assert not open_now()


def check_unused_parameters():
    for stay in (1, 2):
        model = DistributedDataParallel(Branches().to(DEVICE), find_unused_parameters=True)
        found(model)
        num_reduced = num_seen = 0
        for step in range(12):
            model.module.use_first = step // stay % 2 == 0
            before = number()
            backward(model)
            num_reduced += number() > before
            num_seen += len(gradients(seen()))
        assert num_reduced == 12
        assert num_seen == 12 - 3, num_seen  # learned once for each branch, missed once between
        assert not open_now()


def check_a_branch_that_never_comes_again():
    model = DistributedDataParallel(Branches().to(DEVICE), find_unused_parameters=True)
    found(model)
    hooked = []
    for step in range(16):
        model.module.use_first = step != 2
        backward(model)
        hooked.append(sum(bool(p._post_accumulate_grad_hooks) for p in model.parameters()))
    assert hooked[:2] == [1, 1]
    assert max(hooked) == len(list(model.parameters())), hooked
    assert hooked[-1] == 1, hooked  # it is given up
    assert len(gradients(seen())) == 16 - 2


def check_shared_and_static_and_accumulated():
    tokens = torch.arange(WIDTH, device=DEVICE)
    tied = DistributedDataParallel(Tied().to(DEVICE))
    static = DistributedDataParallel(small(), static_graph=True)
    found(tied)
    for model, inputs in ((tied, tokens), (static, None)):
        for _ in range(3):
            backward(model, inputs)
        seen()
        for _ in range(4):
            backward(model, inputs)
        assert len(gradients(seen())) == 4, type(model.module)


def check_actor_and_critic_in_their_stages():
    actor, critic = (DistributedDataParallel(small()) for _ in range(2))
    optimizers = {model: torch.optim.SGD(model.parameters(), 0.1) for model in (actor, critic)}
    found(actor)
    names = {"actor_update": actor, "critic_update": critic}
    for step in range(4):
        if step == 2:
            seen()
        for stage, model in names.items():
            with dfx.stage(stage):
                backward(model)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizers[model].step()
    rows = seen()
    assert len(gradients(rows)) == 4
    for model in ("actor", "critic"):
        assert len(scalars(rows, f"torch/{model}/grad_norm")) == 2
        assert scalars(rows, f"torch/{model}/lr") == [0.1, 0.1]
    assert scalars(rows, "torch/grad_norm") == []
    assert len(scalars(rows, "torch/loss")) == 0


def check_one_backward_through_two_models():
    actor, critic = (DistributedDataParallel(small()) for _ in range(2))
    found(actor)
    for step in range(4):
        (actor(x()).mean() + critic(x()).mean()).backward()
        if step == 1:
            seen()
    assert [row.number for row in gradients(seen())][-1] == number()


def check_removed_in_the_middle_of_everything():
    class Removes(nn.Module):
        def forward(self, value):
            remove("forward")
            return Refuses.apply(value)

    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            remove("backward")
            return gradient

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            remove("optimizer")
            return super().step(closure)

    def remove(name: str) -> None:
        if name == place:
            assert name in open_now(), open_now()
            torch_hooks.remove()

    def step() -> list:
        model(x()).square().mean().backward()
        optimizer.step()
        return stages(seen())

    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), Removes(), nn.Linear(WIDTH, WIDTH))
    model = DistributedDataParallel(layers.to(DEVICE))
    optimizer = Optimizer(model.parameters(), 0.1)
    place = ""
    for where in ("forward", "backward", "optimizer"):
        found(model)
        step()
        step()
        seen()
        place = where
        step()
        assert not open_now(), where
        place = ""
        torch_hooks.install()
        found(model)
        step()
        assert step() == ["forward", "backward", "optimizer"]


def check_a_backward_that_raises():
    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("no")

    model = small()
    seen()
    try:
        model(Refuses.apply(x().requires_grad_())).mean().backward()
    except KeyError as error:
        assert error.args == ("no",)  # noqa: PT017
        assert error.__traceback__.tb_frame.f_code is check_a_backward_that_raises.__code__  # noqa: PT017
    (row,) = [row for row in seen() if row.name == "backward"]
    assert row.has_failed
    assert not open_now()


def check_fsdp2():
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # torch < 2.6 has it for CUDA only
        return

    mesh = dist.init_device_mesh(DEVICE, (dist.get_world_size(),))
    model = small()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    found(model)
    for step in range(3):
        if step == 2:
            seen()
            before = guest.group_of(mesh.get_group()).sequence()
        backward(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    rows = seen()
    group = guest.group_of(mesh.get_group())
    issued = [row for row in rows if row.kind == COLLECTIVE]
    assert {row.name.partition("@")[2] for row in issued} == {group.name}
    assert "reduce_scatter_tensor" in {row.name.partition("@")[0] for row in issued}
    assert "all_gather_into_tensor" in {row.name.partition("@")[0] for row in issued}
    assert len(issued) >= group.sequence() - before - 1  # the norm's one comes from C++
    (reported,) = scalars(rows, "torch/grad_norm")
    assert abs(reported - float(norm.full_tensor())) < 1e-6
    assert sorted(set(stages(rows))) == ["backward", "forward", "optimizer"]


def check_functional_collectives_show_as_a_gap():
    from torch.distributed import _functional_collectives as functional

    seen()
    before = number()
    for _ in range(3):
        functional.all_reduce(x(), "sum", dist.group.WORLD).sum().item()
    advance = number() - before
    assert advance == 3
    assert [row for row in seen() if row.kind == COLLECTIVE] == []


def check_tensor_parallel():
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = dist.init_device_mesh(DEVICE, (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(DEVICE)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    backward(model)
    seen()
    backward(model)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    rows = seen()
    placements = [type(placement).__name__ for placement in norm.placements]
    expected = 1 if placements == ["Replicate"] else 0
    assert len(scalars(rows, "torch/grad_norm")) == expected, placements


def check_a_model_is_copied_and_saved_without_us():
    model = small()
    found(model)
    backward(model)
    assert len(model._forward_hooks) == 1
    twin = copy.deepcopy(model)
    data = io.BytesIO()
    torch.save(model, data)
    assert b"dfx" not in data.getvalue()
    assert b"dfx" not in pickle.dumps(model)
    data.seek(0)
    loaded = torch.load(data, weights_only=False)
    seen()
    for other in (twin, loaded):
        assert torch.equal(other(x()), model(x()))
    assert stages(seen()) == ["forward"] * 2  # the model's own


def check_the_guest_met_no_error():
    assert num_guest_errors() == 0
    assert steps(seen()) == []
    assert not open_now()
    assert len(ddp.replicas) < 20


if __name__ == "__main__":
    dfx.set_step(1)
    join()
    report(checks_of("__main__"))
    leave()
