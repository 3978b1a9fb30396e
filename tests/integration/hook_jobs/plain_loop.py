"""One process, no process group: steps, optimizers, AMP, gradient norms, losses."""

from __future__ import annotations

import gc
import math
import os
import time
import weakref

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
    stages,
    steps,
)
from torch import nn

import dfx_agent.shim as dfx
from dfx_agent.shim import recorder
from dfx_agent.shim.torch import modules, optimizers, overhead, step_hooks
from dfx_agent.wire.records import TOKENS

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


def check_a_plain_loop_gets_steps():
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    losses = [step(model, optimizer) for _ in range(5)]
    rows = arrived()
    assert steps(rows) == [2, 3, 4, 5, 6]  # each is the begin of the next
    assert counted(rows, "optimizer_steps") == counted(rows, "micro_batches") == 5
    assert scalars(rows, "torch/loss") == [float(torch.tensor(loss)) for loss in losses]
    assert scalars(rows, "torch/lr") == [0.25] * 5
    norms = scalars(rows, "torch/grad_norm")
    assert len(norms) == 5
    assert all(norm > 0 for norm in norms)
    assert stages(rows).count("backward") == stages(rows).count("optimizer") == 5


def check_gradient_accumulation():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    forget_steps()
    seen()
    for _ in range(2):
        for _ in range(4):
            model(x()).mean().backward()
        optimizer.step()
    rows = seen()
    assert counted(rows, "micro_batches") == 8
    assert steps(rows) == [2, 3]


def check_a_resumed_optimizer_continues_counting():
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(7):
        step(model, optimizer)
    saved = optimizer.state_dict()
    resumed = torch.optim.AdamW(model.parameters())
    resumed.load_state_dict(saved)
    del optimizer
    forget_steps()
    seen()
    step(model, resumed)
    step(model, resumed)
    assert steps(seen()) == [9, 10]


def check_several_optimizers_and_one_that_is_thrown_away():
    models = [small() for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    forget_steps()
    seen()
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer)
    rows = seen()
    assert steps(rows) == [2, 3, 4]
    assert counted(rows, "optimizer_steps") == 9
    first = weakref.ref(optimizers.pop(0))
    del optimizer
    while first() is not None:  # the watch thread may be looking at it just now
        gc.collect()
    step(models[1], optimizers[0])
    assert steps(seen()) == [5]
    for _ in range(102):  # of the two that are left, the other one goes on alone
        step(models[2], optimizers[1])
    assert steps(seen()) == [6, 7]


def check_an_optimizer_inside_another():
    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            inner.step()
            return super().step(closure)

    model = small()
    inner, outer = torch.optim.SGD(model.parameters(), 0.1), Outer(model.parameters(), 0.1)
    seen()
    for _ in range(3):
        step(model, outer)
    rows = seen()
    assert counted(rows, "optimizer_steps") == 3
    assert stages(rows).count("optimizer") == 3
    assert not step_hooks.seen.at_work


def check_lbfgs_calls_backward_inside_its_step():
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    num_calls = 0

    def closure():
        nonlocal num_calls
        num_calls += 1
        optimizer.zero_grad()
        loss = model(x()).square().mean()
        loss.backward()
        return loss

    seen()
    optimizer.step(closure)
    rows = [row for row in seen() if row.name in ("backward", "optimizer")]
    backwards = [row for row in rows if row.name == "backward"]
    (around,) = [row for row in rows if row.name == "optimizer"]
    assert len(backwards) == num_calls > 1
    assert {row.parent for row in backwards} == {around.span}
    assert not open_now()


def check_an_optimizer_that_raises():
    class Refuses(torch.optim.SGD):
        is_well = False

        def step(self, closure=None):
            if not self.is_well:
                raise ZeroDivisionError("no")
            return super().step(closure)

    model = small()
    optimizer, other = Refuses(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)
    seen()
    try:
        step(model, optimizer)
    except ZeroDivisionError as error:
        assert error.__traceback__.tb_frame.f_code is check_an_optimizer_that_raises.__code__  # noqa: PT017
    assert open_now() == ["optimizer"]  # torch tells nobody
    step(model, other)
    rows = seen()
    assert [row.has_failed for row in rows if row.name == "optimizer"] == [True, False]
    assert all(row.parent == 0 for row in rows if row.name == "backward")
    optimizer.zero_grad()
    optimizer.is_well = True
    step(model, optimizer)
    assert counted(seen(), "optimizer_steps") == 1
    assert not open_now()


def check_a_gradient_that_is_not_finite():
    gc.collect()  # optimizers of the checks before
    model = small()
    model(x()).mean().backward()
    for parameter in model.parameters():
        parameter.grad.fill_(math.nan)
    arrived()
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).isnan()
    rows = arrived()
    if DEVICE == "cpu":
        assert counted(rows, "nonfinite_gradients") == 1
    assert math.isnan(scalars(rows, "torch/grad_norm")[0])
    try:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    except RuntimeError as error:
        assert "non-finite" in str(error)  # noqa: PT017
        assert error.__traceback__.tb_frame.f_code is check_a_gradient_that_is_not_finite.__code__  # noqa: PT017
    else:
        raise AssertionError("it was swallowed")
    assert counted(arrived(), "nonfinite_gradients") == 1


def check_the_norm_of_parameters_is_not_that_of_gradients():
    gc.collect()  # optimizers of the checks before
    model = small()
    model(x()).mean().backward()
    arrived()
    total_norm = getattr(nn.utils, "get_total_norm", None)
    if total_norm is not None:  # torch >= 2.6
        total_norm(list(model.parameters()))
        assert scalars(arrived(), "torch/grad_norm") == []
        total_norm([parameter.grad for parameter in model.parameters()])
        assert len(scalars(arrived(), "torch/grad_norm")) == 1


def check_stages_that_the_job_marks_itself():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    modules.follow([model])
    step(model, optimizer)
    seen()
    for _ in range(2):
        with dfx.stage("forward"), dfx.stage("attention"):
            loss = model(x()).mean()
        with dfx.stage("backward"):
            loss.backward()
        with dfx.stage("optimizer"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert stages(seen()) == ["attention", "forward", "backward", "optimizer"] * 2
    step(model, optimizer)
    assert stages(seen()) == ["forward", "backward", "optimizer"]


class Layered(nn.Module):
    """Its list of layers is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.to(DEVICE)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


def hooks_on_all_modules() -> int:
    return len(torch.nn.modules.module._global_forward_pre_hooks)


def train_until_found(model: nn.Module, rollout=lambda: None) -> None:
    """With the watch thread's help; afterwards only roots have a hook."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    deadline = time.monotonic() + 30
    while not model._forward_hooks or hooks_on_all_modules():
        assert time.monotonic() < deadline, "the model was not found"
        rollout()
        step(model, optimizer)
        time.sleep(0.001)
    assert not any(part._forward_hooks for part in list(model.modules())[1:])
    seen()
    step(model, optimizer)
    assert stages(seen()) == ["forward", "backward", "optimizer"]


def check_models_are_found_by_being_called():
    reference, trained = Layered(), Layered()
    trained.layers[1](x())  # a part by itself, before the whole

    def refer() -> None:
        with torch.no_grad():
            reference(x())

    train_until_found(trained, refer)


def check_a_model_in_the_place_of_one_that_went_is_noted():
    model, listener = small(), modules._Listener()
    gone = weakref.ref(nn.Linear(1, 1))
    gc.collect()
    assert gone() is None
    listener._called[id(model)] = gone  # where the job lets a model go and makes the next
    model(x())
    listener.leave()
    assert modules._roots(listener._living()) == [model]


def check_a_long_rollout_does_not_hide_a_model():
    trained, reward = Layered(), Layered()
    most, modules._MAX_CALLS = modules._MAX_CALLS, 30
    turns = [20]

    def roll_out() -> None:
        with torch.no_grad():
            for _ in range(turns.pop() if turns else 5):
                reward(x())

    train_until_found(trained, roll_out)
    modules._MAX_CALLS = most


def check_generation_is_not_forward():
    model = small()
    modules.follow([model])
    model(x()).mean().backward()
    seen()
    with torch.no_grad():
        for _ in range(5):
            model(x())
    assert stages(seen()) == []


def check_tokens_of_forwards_that_are_trained_on():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

        def forward(self, x, attention_mask=None, input_ids=None):
            return self.head(self.embedding(x if input_ids is None else input_ids))

    model = Model().to(DEVICE)
    modules.follow([model])
    ids = torch.ones(3, 5, dtype=torch.int64, device=DEVICE)
    model(ids).mean().backward()
    model(None, attention_mask=ids[:, :4], input_ids=ids[:2]).mean().backward()
    with torch.no_grad():
        model(ids)
    whole = small()
    modules.follow([whole])
    whole(x()).mean().backward()  # no token ids
    rows = seen()
    assert [(row.name, row.value) for row in rows if row.kind == TOKENS] == [
        ("forward", 15.0),
        ("forward", 10.0),
    ]
    assert stages(rows).count("forward") == 3


def check_samples_of_forwards_that_are_trained_on():
    model = small()
    modules.follow([model])
    known = recorder.current.num_samples
    for num_rows in (2, 6):
        model(torch.ones(num_rows, WIDTH, device=DEVICE)).mean().backward()
    with torch.no_grad():
        model(x())
    assert recorder.current.num_samples - known == 8


def check_a_forward_that_raises():
    model = small()
    modules.follow([model])
    model(x()).mean().backward()
    seen()
    try:
        model(torch.ones(2, WIDTH + 1, device=DEVICE))
    except RuntimeError as error:
        assert error.__traceback__.tb_frame.f_code is check_a_forward_that_raises.__code__  # noqa: PT017
    assert stages(seen()) == ["forward"]
    assert not open_now()


def check_recomputed_checkpoints_are_one_backward():
    from torch.utils.checkpoint import checkpoint

    model = small()
    seen()
    for use_reentrant in (True, False):
        inputs = x().requires_grad_()
        checkpoint(model, inputs, use_reentrant=use_reentrant).mean().backward()
        rows = seen()
        assert counted(rows, "micro_batches") == 1, use_reentrant
        assert stages(rows).count("backward") == 1


def check_nothing_that_we_wrap_looks_different():
    import inspect

    backward = torch.autograd.backward
    assert backward.__name__ == "backward"
    assert "retain_graph" in inspect.signature(backward).parameters
    assert "max_norm" in inspect.signature(nn.utils.clip_grad_norm_).parameters
    assert torch.distributed.ProcessGroup.allreduce.__doc__
    state = torch.random.get_rng_state()
    model = small()
    torch.random.set_rng_state(state)
    model(x()).mean().backward()
    assert torch.equal(torch.random.get_rng_state(), state)


def check_steps_set_by_the_job_are_used():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen()
    for number in (100, 101):
        dfx.set_step(number)
        step(model, optimizer)
    rows = arrived()
    assert steps(rows) == [100, 101]
    assert [row.number for row in rows if row.name == "torch/loss"] == [100, 101]


def check_above_a_budget_details_go_and_steps_stay():
    forget_steps()
    recorder.current.has_explicit_steps = False
    os.environ["DFX_MAX_OVERHEAD"] = "0.0001%"
    account = overhead.Overhead()
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step(model, optimizer)
    for second in range(40):
        account.account(recorder.current, second * 10**9)
    arrived()
    for _ in range(3):
        step(model, optimizer)
    rows = arrived()
    assert stages(rows) == scalars(rows, "torch/loss") == scalars(rows, "torch/grad_norm") == []
    assert len(steps(rows)) == 3
    assert counted(rows, "optimizer_steps") == counted(rows, "micro_batches") == 3
    assert account.restore_all()
    del os.environ["DFX_MAX_OVERHEAD"]


def check_a_budget_that_is_spent_within_a_step_leaves_its_loss_whole():
    forget_steps()
    writer = recorder.current
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], 0.0)

    def accumulated(number, stride=None):
        dfx.set_step(number)
        for micro_batch in range(4):
            if micro_batch == 2 and stride:
                writer.stride = stride
            (parameter * 0 + 10.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    arrived()
    for number in range(1, 40):
        accumulated(number, {6: 16, 34: 1}.get(number))
    losses = [(row.number, row.value) for row in arrived() if (row.name or "").endswith("/loss")]
    assert {value for _, value in losses} == {40.0}, losses
    assert [number for number, _ in losses] == [*range(1, 7), 16, 32, *range(35, 40)], losses


def check_the_guest_met_no_error():
    assert num_guest_errors() == 0
    assert not open_now()


if __name__ == "__main__":
    torch.set_num_threads(1)
    report(checks_of("__main__"))
