"""Two ranks train long before the guest comes, in a thread of its own; then it goes, and comes."""

from __future__ import annotations

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_reduce, barrier  # bound before anybody patches
from torch.nn.parallel import DistributedDataParallel

assert not any(name.startswith("dfx_agent") for name in sys.modules)

from seen import (  # noqa: E402
    DEVICE,
    arrived,
    checks_of,
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

from dfx_agent.wire.records import (  # noqa: E402
    COLLECTIVE,
    COLLECTIVE_WAIT,
    COUNT,
    SCALAR,
    STAGE,
    STEP,
)

WIDTH = 64
NUM_STEPS = 20
EARLY_STEPS = 5

join()
torch.manual_seed(0)
layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)]).to(DEVICE)
model = DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters())
clip_early = nn.utils.clip_grad_norm_
done: list[int] = []


def train(num_steps: int) -> None:
    for _ in range(num_steps):
        loss = model(torch.ones(2, WIDTH, device=DEVICE)).square().mean()
        loss.backward()
        if hasattr(nn.utils, "get_total_norm"):
            clip_early(model.parameters(), 1.0)
        else:  # torch < 2.6: only what is looked up in the call is seen
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        all_reduce(torch.ones(1, device=DEVICE))
        done.append(1)


def while_it_trains(call) -> None:
    """``call`` in another thread; the job goes on, as many steps on every rank."""
    thread = threading.Thread(target=call)
    thread.start()
    while True:
        train(2)
        living = torch.tensor(float(thread.is_alive()), device=DEVICE)
        all_reduce(living)
        if not living:
            thread.join()
            return


def arrive() -> None:
    import dfx_agent.shim as dfx

    assert dfx.init(role="trainer")
    deadline = time.monotonic() + 30
    from dfx_agent.shim.torch import ddp, modules

    while not (modules.FORWARD.is_active and ddp.PATCHES.is_active):
        assert time.monotonic() < deadline, "models were not found"
        time.sleep(0.01)


def expect_everything() -> None:
    while_it_trains(lambda: time.sleep(0.1))
    barrier()
    arrived()
    before = len(done)
    train(NUM_STEPS)
    rows = arrived()
    for name in ("forward", "backward", "optimizer"):
        assert stages(rows).count(name) == NUM_STEPS, name
    names = [row.name for row in rows]
    assert names.count("ddp_gradients@0") == NUM_STEPS
    assert names.count("all_reduce@0") == NUM_STEPS
    assert counted(rows, "optimizer_steps") == counted(rows, "micro_batches") == NUM_STEPS
    assert steps(rows) == [before + i + 2 for i in range(NUM_STEPS)]  # the optimizer's own count
    for name in ("loss", "grad_norm", "lr"):
        assert len(scalars(rows, f"torch/{name}")) == NUM_STEPS, name
    numbers = [row.number for row in rows if row.name == "all_reduce@0"]
    assert len(set(numbers)) == NUM_STEPS
    assert numbers == sorted(numbers)
    reported = [None] * dist.get_world_size()
    dist.all_gather_object(reported, numbers)
    assert all(other == numbers for other in reported)


def check_the_job_without_us():
    train(EARLY_STEPS)
    assert "dfx_agent.shim.torch.hooks" not in sys.modules
    assert seen() == []


def check_everything_is_seen_after_a_late_install():
    while_it_trains(arrive)
    expect_everything()


def check_nothing_is_seen_after_remove():
    from dfx_agent.shim.torch.hooks import torch_hooks

    while_it_trains(torch_hooks.remove)
    barrier()
    arrived()
    train(NUM_STEPS)
    assert seen(STAGE, COLLECTIVE, COLLECTIVE_WAIT, COUNT, SCALAR, STEP) == []
    assert not open_now()


def check_everything_is_seen_again():
    from dfx_agent.shim.torch import modules
    from dfx_agent.shim.torch.hooks import torch_hooks

    def come_back():
        torch_hooks.install()
        deadline = time.monotonic() + 30
        while not modules.FORWARD.is_active:
            assert time.monotonic() < deadline, "models were not found"
            time.sleep(0.01)

    while_it_trains(come_back)
    expect_everything()


def check_it_comes_and_goes_while_the_job_trains():
    from dfx_agent.shim.torch.hooks import torch_hooks

    def toggle():
        for _ in range(15):
            torch_hooks.remove()
            time.sleep(0.01)
            torch_hooks.install()
            time.sleep(0.05)

    while_it_trains(toggle)
    expect_everything()


def check_the_guest_met_no_error():
    assert num_guest_errors() == 0
    assert not open_now()


if __name__ == "__main__":
    assert not os.environ["DFX_AGENT"]
    report(checks_of("__main__"))
    leave()
