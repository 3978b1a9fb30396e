"""A torch job: from step 150 on its learning rate is far too high.

``blown_up.py STEP_SECONDS [marked]``: how long a step sleeps; the loss goes from 6.9 to 1e10 and
more. "marked": steps and the stage ``actor_update`` are told, else nothing is.
"""

import sys
import time
from contextlib import nullcontext

import torch
from torch import nn

import dfx_agent.shim as dfx

BLOW_UP_STEP = 150
CLASSES, WIDTH = 1000, 32


def main() -> None:
    step_seconds, is_marked = float(sys.argv[1]), sys.argv[2:] == ["marked"]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), *layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1, 1_000_000):
        if step == BLOW_UP_STEP:
            optimizer.param_groups[0]["lr"] = 5.0
        if is_marked:
            dfx.set_step(step)
        labels = torch.randint(CLASSES, (16,))
        with dfx.stage("actor_update") if is_marked else nullcontext():
            loss = nn.functional.cross_entropy(model(torch.randn(16, WIDTH)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        time.sleep(step_seconds)


if __name__ == "__main__":
    main()
