"""A compiled model, one process; a second shape is compiled while it trains."""

import torch
from torch import nn

from bench.mixed.results import Results

STEPS_BEFORE_SECOND_SHAPE = 100


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    results = Results()
    step = 0
    while results.take(step, model.parameters()):
        step += 1
        num_rows = 64 if step < STEPS_BEFORE_SECOND_SHAPE or step % 2 else 96
        inputs = torch.randn(num_rows, 256)
        loss = (compiled(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
