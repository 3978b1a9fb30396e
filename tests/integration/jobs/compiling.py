"""Trains a compiled model, as ``sys.argv[1]`` says, and prints what must be the same without us.

Losses bit for bit, how often dynamo called the backend, and how often it was compiled again. With
DFX_TEST_OBSERVED a model that is not compiled is trained first until a hook of the guest is in.
"""

import os
import sys
import time

import torch
from torch._dynamo.utils import counters

graphs = []


def backend(graph_module, _example_inputs):
    graphs.append(graph_module)
    return graph_module.forward


def block():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))


def warm_up(is_enough):
    """Steps of a model of its own; without the guest nothing is waited for."""
    critic = block()
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    deadline = time.monotonic() + 60
    for step in range(100_000):
        critic(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step and ("DFX_TEST_OBSERVED" not in os.environ or is_enough(critic)):
            return critic
        assert time.monotonic() < deadline, "no hook came"
        time.sleep(0.005)
    return critic


def is_listened_to(_critic):
    return bool(torch.nn.modules.module._global_forward_pre_hooks)


def has_hook(critic):
    return bool(critic._forward_hooks)


def compiled(how):
    torch.manual_seed(1)
    model = block()
    if how == "method":
        model.compile(backend=backend)
        return model, model
    if how == "function":
        return model, torch.compile(lambda x: 2 * model(x), backend=backend)
    if how == "part":
        model[0] = torch.compile(model[0], backend=backend)
        return model, model
    return model, torch.compile(model, backend=backend)


how, when = sys.argv[1:3]
others = []
if when == "listening":
    others.append(warm_up(is_listened_to))
if when == "hooked":
    others.append(warm_up(has_hook))
model, call = compiled(how)
if when == "between":  # asked for, and used only later
    others.append(warm_up(lambda _: True))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    loss = call(torch.arange(16.0).reshape(2, 8)).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
assert not torch.nn.modules.module._global_forward_pre_hooks
print(len(graphs), counters["graph_break"], counters["recompiles"])
print([sum(len(m._forward_hooks) for m in each.modules()) for each in (model, *others)])
