"""Two ranks with torch.compile: no graph break, no second compilation, nothing of ours inside."""

from __future__ import annotations

import gc

import torch
import torch._dynamo
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
)
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from dfx_agent.shim.torch import modules, step_hooks
from dfx_agent.shim.torch.hooks import torch_hooks
from dfx_agent.wire.records import COLLECTIVE, COUNT, STAGE

WIDTH = 16

graphs: list[str] = []


def backend(graph_module, example_inputs):
    """Runs the graph as it is, and keeps its code."""
    graphs.append(graph_module.code)
    return graph_module.forward


def fresh() -> None:
    gc.collect()  # models of the checks before
    if modules._search.listener is not None:  # reset() also clears what tells it of a compilation
        modules._search.listener.leave()
    torch._dynamo.reset()
    torch._dynamo.config.error_on_recompile = False
    graphs.clear()
    counters.clear()
    seen()


def from_now_on_nothing_compiles() -> None:
    torch._dynamo.config.error_on_recompile = True
    if hasattr(torch._dynamo.config, "fail_on_recompile_limit_hit"):  # torch >= 2.7
        torch._dynamo.config.fail_on_recompile_limit_hit = True


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)]).to(DEVICE)


def x() -> torch.Tensor:
    return torch.ones(4, WIDTH, device=DEVICE)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(x()).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def check_a_compiled_model_in_one_graph():
    fresh()
    model = small()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters())
    step(compiled, optimizer)
    assert modules._is_compiled([])  # nobody may hook into modules now
    from_now_on_nothing_compiles()
    seen()
    for _ in range(3):
        step(compiled, optimizer)
    rows = seen()
    assert stages(rows).count("backward") == stages(rows).count("optimizer") == 3
    assert len(scalars(rows, "torch/grad_norm")) == 3
    assert len(graphs) == 1
    assert not counters["graph_break"]


def check_hooks_go_and_come_back_without_a_second_compilation():
    fresh()
    model = small()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters())
    step(compiled, optimizer)
    from_now_on_nothing_compiles()
    for _ in range(2):
        torch_hooks.remove()
        seen()
        step(compiled, optimizer)
        assert seen(STAGE, COLLECTIVE, COUNT) == []
        torch_hooks.install()
        modules.follow([model])
        for _ in range(3):
            step(compiled, optimizer)
        assert stages(seen()).count("optimizer") == 3
    assert len(graphs) == 1


def check_nobody_listens_to_all_modules_when_a_compilation_begins():
    fresh()
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    listener = modules._Listener()
    step(model, optimizer)
    assert listener._living()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    step(compiled, optimizer)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    listener.leave()
    from_now_on_nothing_compiles()
    step(compiled, optimizer)
    assert len(graphs) == 1


def check_a_function_that_is_compiled_after_hooks_are_on_its_model():
    fresh()
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counters.clear()
    modules.follow([model])
    step(model, optimizer)
    assert len(model._forward_hooks) == 1

    @torch.compile(fullgraph=True, backend=backend)
    def loss(inputs):
        return model(inputs).square().mean()

    seen()
    loss(x()).backward()
    from_now_on_nothing_compiles()
    for _ in range(3):
        loss(x()).backward()
    assert "forward" not in stages(seen())
    (code,) = graphs
    assert "dfx" not in code
    assert not open_now()


def check_compiled_parts_of_the_step():
    """Clipping and the optimizer's step as graphs: nothing is recorded while they are traced."""
    fresh()
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(x()).square().mean().backward()

    @torch.compile(backend=backend)
    def clip():
        return nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)

    @torch.compile(backend=backend)
    def update():
        optimizer.step()

    for _ in range(3):
        clip()
        update()
    assert not any("dfx" in code for code in graphs)
    assert not any("dfx" in str(reason) for reason in counters["graph_break"])
    from_now_on_nothing_compiles()
    clip()
    update()


def check_parts_compiled_before_attach_are_compiled_again():
    """Known: dynamo guards torch's function that computes the norm, and its list of step hooks."""
    fresh()
    torch_hooks.remove()
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(x()).square().mean().backward()
    clip = torch.compile(
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False), backend=backend
    )
    update = torch.compile(optimizer.step, backend=backend)

    def num_graphs() -> int:
        for _ in range(3):
            clip()
            update()
        return len(graphs)

    num_before = num_graphs()
    torch_hooks.install()
    num_with = num_graphs()
    torch_hooks.remove()
    assert num_graphs() == num_with <= 2 * num_before
    torch_hooks.install()
    assert num_graphs() == num_with


def check_backward_inside_a_compiled_function():
    """Breaks the graph as it does without us, and is recorded."""
    fresh()
    model = small()

    def both():
        model(x()).square().mean().backward()

    torch_hooks.remove()
    torch.compile(both, backend=backend)()
    without = len(graphs), sorted(map(str, counters["graph_break"]))
    fresh()
    torch_hooks.install()
    compiled = torch.compile(both, backend=backend)
    compiled()
    with_hooks = len(graphs), sorted(map(str, counters["graph_break"]))
    assert with_hooks == without, (with_hooks, without, graphs)
    from_now_on_nothing_compiles()
    seen()
    compiled()
    assert stages(seen()) == ["backward"]


def check_compiled_ddp():
    fresh()
    model = DistributedDataParallel(small())
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step(compiled, optimizer)
    from_now_on_nothing_compiles()
    for _ in range(4):
        step(compiled, optimizer)
    rows = seen()
    assert len([row for row in rows if row.name == "ddp_gradients@0"]) >= 3
    assert not any("dfx" in code for code in graphs)
    torch_hooks.remove()
    step(compiled, optimizer)
    torch_hooks.install()


def check_collectives_in_a_graph():
    fresh()

    @torch.compile(fullgraph=True, backend=backend)
    def reduced(inputs):
        inputs = inputs * 2
        dist.all_reduce(inputs)
        return inputs + 1

    expected = 2.0 * dist.get_world_size() + 1
    assert reduced(x()).mean().item() == expected
    from_now_on_nothing_compiles()
    torch_hooks.remove()
    assert reduced(x()).mean().item() == expected
    torch_hooks.install()
    collectives()
    assert reduced(x()).mean().item() == expected
    (code,) = graphs
    assert "dfx" not in code
    assert [row for row in collectives() if row.name.startswith("all_reduce")] == []


def check_optimizers_made_after_dynamo_are_seen():
    fresh()
    model = small()
    optimizer = torch.optim.Adadelta(model.parameters())
    step(model, optimizer)
    assert counted(seen(), "optimizer_steps") == 1


def check_the_guest_met_no_error():
    assert num_guest_errors() == 0
    assert not open_now()
    assert step_hooks.OPTIMIZER.state == "active"


if __name__ == "__main__":
    join()
    dist.barrier()
    report(checks_of("__main__"))
    leave()
