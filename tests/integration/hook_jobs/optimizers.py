"""One process: whose a loss, a norm and a step is, of one optimizer, of two, and under AMP."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable

import torch
from seen import (
    DEVICE,
    arrived,
    checks_of,
    counted,
    num_guest_errors,
    open_now,
    report,
    scalars,
    seen,
    steps,
)
from torch import nn

import dfx_agent.shim as dfx
from dfx_agent.shim.torch import losses, optimizers, step_hooks
from dfx_agent.shim.torch.hooks import torch_hooks

WIDTH = 8


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)).to(DEVICE)


def x() -> torch.Tensor:
    return torch.ones(2, WIDTH, device=DEVICE)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = model(x()).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def forget_steps() -> None:
    """As in a process that has just begun."""
    optimizers.state.first = None
    step_hooks.seen.step_of_first = 0


def forgotten_otherwise() -> Callable[[], None]:
    """The step of an optimizer of something else, the only one that there is."""
    gc.collect()
    forget_steps()
    return torch.optim.SGD([nn.Parameter(x())], 0.1).step


def check_the_loss_of_a_step_is_the_sum_of_what_was_scaled():
    weight = nn.Parameter(torch.ones(1, device=DEVICE))
    optimizer = torch.optim.SGD([weight], 0.0)
    arrived()
    for _ in range(3):
        for value in (1.0, 2.0, 3.0, 10.0):
            ((weight * value).sum() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert scalars(arrived(), "torch/loss") == [4.0] * 3


def check_a_loss_without_a_gradient_is_reported():
    for to_none in (True, False):
        weight = nn.Parameter(torch.ones(1, device=DEVICE))
        optimizer = torch.optim.SGD([weight], 0.0)
        arrived()
        for value in (1.0, 7.0, 2.0):
            (weight * value).sum().backward()
            if value != 7.0:
                optimizer.step()
            optimizer.zero_grad(set_to_none=to_none or value == 7.0)
        assert scalars(arrived(), "torch/loss") == [1.0, 7.0, 2.0]


def check_two_optimizers_are_two_series():
    gc.collect()
    forget_steps()
    for order in ("apart", "together", "through both"):
        first, second = (nn.Parameter(torch.ones(1, device=DEVICE)) for _ in range(2))
        optimizers = [torch.optim.SGD([first], 0.5), torch.optim.SGD([second], 0.25)]
        for number in range(3):
            if number == 1:
                arrived()  # after the first round both are known
            for optimizer in optimizers:
                optimizer.zero_grad()
            if order == "apart":
                for weight, optimizer, value in zip(
                    (first, second), optimizers, (1, 2), strict=True
                ):
                    (weight.detach() * weight / weight.detach() ** 2 * value).sum().backward()
                    nn.utils.clip_grad_norm_([weight], 9.0)
                    optimizer.step()
                continue
            (first / first.detach()).sum().backward()
            if order == "through both":  # its gradient reaches the other model, and is thrown away
                (second / second.detach() * first.detach()).sum().backward()
                optimizers[0].step()
                optimizers[1].zero_grad()
            (second / second.detach() * 2).sum().backward()
            nn.utils.clip_grad_norm_([second], 9.0)
            nn.utils.clip_grad_norm_([first], 9.0)
            for optimizer in optimizers[order == "through both" :]:
                optimizer.step()
        rows = arrived()
        assert scalars(rows, "torch/lr") == [0.5] * 2, order
        assert scalars(rows, "torch/optimizer_2/lr") == [0.25] * 2, order
        assert scalars(rows, "torch/loss") == [1.0] * 2, order
        losses_of_other = scalars(rows, "torch/optimizer_2/loss")
        assert losses_of_other[-1] == 2.0, order
        assert len(scalars(rows, "torch/grad_norm")) == 2, order
        assert len(scalars(rows, "torch/optimizer_2/grad_norm")) == 2, order
        del optimizers, optimizer
        gc.collect()
        forget_steps()


def check_steps_belong_to_the_one_on_the_main_thread_or_that_is_named():
    gc.collect()
    forget_steps()
    arrived()
    helper, main, named = (
        (model := small(), torch.optim.SGD(model.parameters(), 0.1)) for _ in "abc"
    )
    thread = threading.Thread(target=lambda: [step(*helper) for _ in range(2)])
    thread.start()
    thread.join()
    assert steps(seen()) == [2, 3]
    step(*main)
    thread = threading.Thread(target=lambda: step(*helper))
    thread.start()
    thread.join()
    assert steps(seen()) == [4]
    with dfx.stage("critic_update"):
        step(*helper)
    with dfx.stage("actor_update"):
        step(*named)
    step(*main)
    assert steps(seen()) == [5]


def check_amp_with_an_inf_gradient_is_a_skipped_update():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=3.0)
    given = []
    forget_steps()
    arrived()
    for is_inf in (False, True, False):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(x()).mean()
        given.append(loss * math.inf if is_inf else loss)
        scaler.scale(given[-1]).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    rows = arrived()
    assert counted(rows, "skipped_updates") == 1
    assert counted(rows, "optimizer_steps") == 2
    assert counted(rows, "micro_batches") == 3
    assert scalars(rows, "torch/loss") == [loss.item() for loss in given]  # not a third of thrice
    assert not losses.state.loss_by_scaled


def check_several_scaled_losses_and_ones_that_are_no_losses():
    model = small()
    update = forgotten_otherwise()
    scaler = torch.amp.GradScaler(DEVICE, init_scale=3.0)
    first, second, many = model(x()).mean(), model(x()).square().mean(), model(x())
    arrived()
    scaled = scaler.scale([first, second, many])
    scaled[1].backward()
    update()
    scaled[0].backward()
    update()
    scaled[2].sum().backward()  # made from a scaled one: three times the loss
    update()
    (scaler.scale(outputs=model(x()).mean()) / 2).backward()
    update()
    rows = arrived()
    assert scalars(rows, "torch/loss") == [second.item(), first.item()]
    assert counted(rows, "micro_batches") == 4
    scaler.scale(outputs=model(x()).mean()).backward()
    update()
    assert len(scalars(arrived(), "torch/loss")) == 1
    stored = weakref.ref(first)
    del first, scaled
    assert stored() is None
    assert not losses.state.loss_by_scaled
    losses.state.has_scaler = False


def check_a_loss_that_was_scaled_before_we_came():
    model = small()
    update = forgotten_otherwise()
    scaler = torch.amp.GradScaler(DEVICE, init_scale=3.0)
    torch_hooks.remove()
    scaled = scaler.scale(model(x()).mean())
    torch_hooks.install()
    arrived()
    scaled.backward()
    update()
    assert scalars(arrived(), "torch/loss") == []
    (model(x()).mean() * 2).backward()  # a product, but not the first
    update()
    assert len(scalars(arrived(), "torch/loss")) == 1


def check_a_scaler_that_is_off_skips_nothing():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(DEVICE, enabled=False)
    forget_steps()
    arrived()
    scaler.scale(model(x()).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    rows = arrived()
    assert counted(rows, "skipped_updates") == 0
    assert counted(rows, "optimizer_steps") == 1
    assert len(scalars(rows, "torch/loss")) == 1


def check_the_guest_met_no_error():
    assert num_guest_errors() == 0
    assert not open_now()


if __name__ == "__main__":
    torch.set_num_threads(1)
    report(checks_of("__main__"))
