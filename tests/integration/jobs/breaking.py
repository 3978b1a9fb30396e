"""A training loop without an adapter whose loss becomes NaN at step 60."""

import time

import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(100_000):
    inputs = torch.randn(16, 8)
    loss = (model(inputs) - 1).square().mean()
    if step >= 60:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
