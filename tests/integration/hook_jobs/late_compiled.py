"""DDP modules that were compiled, in both orders, long before the guest comes in a thread."""

from __future__ import annotations

import threading
import time

import torch
import torch._dynamo
import torch.distributed as dist
from seen import (
    DEVICE,
    RANK,
    checks_of,
    join,
    leave,
    num_guest_errors,
    open_now,
    report,
    seen,
    stages,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dfx_agent.wire.records import COLLECTIVE, GROUP

WIDTH = 64
NUM_STEPS = 10

graphs: list[str] = []
rounds: list[str] = []


def backend(graph_module, example_inputs):
    """Runs the graph as it is, and keeps its code."""
    graphs.append(graph_module.code)
    return graph_module.forward


join()
torch.manual_seed(0)


def small() -> nn.Module:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)]).to(DEVICE)


outside = torch.compile(DistributedDataParallel(small()), backend=backend)
inside = DistributedDataParallel(torch.compile(small(), backend=backend))
optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (outside, inside)]


def train(num_steps: int) -> None:
    """No collective but those that DDP's reducer issues from C++."""
    for _ in range(num_steps):
        for model, optimizer in zip((outside, inside), optimizers, strict=True):
            model(torch.ones(256, WIDTH, device=DEVICE)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def is_true_everywhere(is_true: int) -> bool:
    """Without a collective: no group is known by having been called from Python."""
    store = dist.distributed_c10d._get_default_store()
    rounds.append(f"round {len(rounds)}, rank ")
    store.set(rounds[-1] + str(RANK), str(int(is_true)))
    answers = [store.get(rounds[-1] + str(rank)) for rank in range(dist.get_world_size())]
    return answers == [b"1"] * len(answers)


def num_reduced(rows) -> int:
    return len([row for row in rows if row.kind == COLLECTIVE and row.name == "ddp_gradients@0"])


def check_the_gap_shows_before_the_modules_are_met():
    import dfx_agent.shim as dfx
    from dfx_agent.shim.torch import modules

    glimpse, modules.find_active_ddp = modules.find_active_ddp, lambda: None
    arrival = threading.Thread(target=lambda: dfx.init(role="trainer"))
    arrival.start()
    arrival.join()
    numbers: list[int] = []
    deadline = time.monotonic() + 30
    while not is_true_everywhere(len(numbers) > 1):
        assert time.monotonic() < deadline, "nothing says that there are collectives"
        train(5)
        rows = seen()
        assert not any(row.kind == COLLECTIVE for row in rows)
        numbers += [row.number for row in rows if (row.kind, row.name) == (GROUP, "0")]
    assert numbers == sorted(set(numbers))
    modules.find_active_ddp = glimpse


def check_both_modules_are_met():
    from dfx_agent.shim.torch import watch_thread

    watch_thread._PERIOD_SECONDS = 0.002
    deadline = time.monotonic() + 60
    while not is_true_everywhere(num_reduced(seen()) == 2):
        assert time.monotonic() < deadline, "a module was not met"
        train(3)
        seen()
        train(1)
    watch_thread._PERIOD_SECONDS = 1.0
    train(NUM_STEPS)
    rows = seen()
    assert num_reduced(rows) == 2 * NUM_STEPS
    assert stages(rows).count("backward") == 2 * NUM_STEPS


def check_nothing_was_compiled_again():
    assert len(graphs) == num_graphs
    assert not any("dfx" in code for code in graphs)


def check_the_guest_met_no_error():
    assert num_guest_errors() == 0
    assert not open_now()


if __name__ == "__main__":
    train(3)
    num_graphs = len(graphs)
    assert num_graphs
    torch._dynamo.config.error_on_recompile = True
    report(checks_of("__main__"))
    leave()
