"""One rank that asks a server before each step, until FOLDER/stop is there: ``URL FOLDER``.

The last line is JSON: of each step its loss bit for bit and how long the answer took by this job's
own clock, and whether the function that waits is the one that was there at first.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.request
from pathlib import Path

import torch

url, folder = sys.argv[1], Path(sys.argv[2])
at_first = http.client.HTTPConnection.getresponse

torch.manual_seed(7)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)  # one that counts its steps
losses: list[str] = []
seconds: list[float] = []
while not (folder / "stop").exists():
    begin = time.perf_counter()
    with urllib.request.urlopen(f"{url}/{len(losses)}") as answer:
        reward = float(answer.read())
    seconds.append(time.perf_counter() - begin)
    optimizer.zero_grad()
    loss = (model(torch.full((4, 8), reward)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
    (folder / "steps.tmp").write_text(str(len(losses)))
    (folder / "steps.tmp").rename(folder / "steps")
is_as_it_was = http.client.HTTPConnection.getresponse is at_first
print(json.dumps({"losses": losses, "seconds": seconds, "is_as_it_was": is_as_it_was}))
