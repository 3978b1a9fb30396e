"""A plain DDP job that knows nothing of us; at SIGUSR2 it says what is not its own in it."""

import json
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
device = os.environ.get("JOB_DEVICE", "cpu")
layers = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)])
model = DistributedDataParallel(layers.to(device))
optimizer = torch.optim.AdamW(model.parameters())
optim, clip = sys.modules["torch.optim.optimizer"], sys.modules["torch.nn.utils.clip_grad"]


def state():
    functions = {
        **vars(dist.ProcessGroup),
        "Work.wait": vars(dist.Work)["wait"],
        "backward": torch.autograd.backward,
        "norm": getattr(clip, "_get_total_norm", clip.clip_grad_norm_),
        "scaler": vars(torch.amp.GradScaler)["step"],
    }
    hooks = [
        optim._global_optimizer_pre_hooks,
        optim._global_optimizer_post_hooks,
        model._forward_hooks,
        model._forward_pre_hooks,
        *(parameter._post_accumulate_grad_hooks or {} for parameter in model.parameters()),
    ]
    return {
        "functions": {name: id(function) for name, function in functions.items()},
        "finders": [id(finder) for finder in sys.meta_path],
        "num_hooks": sum(map(len, hooks)),
        "modules": sorted(name for name in sys.modules if "dfx" in name),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "main": sorted(name for name in globals() if "dfx" in name),
    }


def say(text):
    os.write(1, f"{text}\n".encode())  # one write: all ranks share the pipe


def report(step):
    now = state()
    changed = sorted(name for name in original if now[name] != original[name])
    line = {"rank": dist.get_rank(), "pid": os.getpid(), "step": step, "changed": changed}
    say(json.dumps(line))


original = state()
for step in range(10**9):
    for _ in range(2):
        model(torch.randn(32, 32, device=device)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(torch.ones(1, device=device))
    time.sleep(0.02)
    if signal.sigpending() & {signal.SIGUSR2}:
        signal.sigwait({signal.SIGUSR2})
        report(step)
    if step == 0:
        say(f"training {os.getpid()}")
