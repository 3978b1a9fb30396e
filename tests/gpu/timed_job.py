"""A training in bfloat16 whose blocks of steps run with the guest, without it, and so again.

``python timed_job.py DEVICE ROUNDS`` prints JSON: seconds of a step by arm and round, how often a
step under the guest was refused because it waited for the device, and records of the guest.
"""

from __future__ import annotations

import json
import random
import sys
import time

import torch
from torch import nn

import dfx_agent.shim as dfx
from bench.rounds import ARMS, SEED
from bench.toggled_guest import ToggledGuest
from dfx_agent.shim import recorder
from dfx_agent.wire import SegmentReader

NUM_LAYERS, WIDTH, NUM_HEADS, BATCH, LENGTH = 8, 1024, 16, 8, 512
STEPS_PER_BLOCK, WARM_UP_STEPS = 10, 20


class Job:
    """A transformer on fixed input; its step has nothing that waits for the device."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(SEED)
        self._device = device
        is_small = device == "cpu"
        width, length = (64, 16) if is_small else (WIDTH, LENGTH)
        layers = [
            nn.TransformerEncoderLayer(width, NUM_HEADS, 4 * width, 0.0, batch_first=True)
            for _ in range(1 if is_small else NUM_LAYERS)
        ]
        self.model = nn.Sequential(*layers).to(device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        self._input = torch.randn(BATCH, length, width, device=device)

    def step(self) -> None:
        with torch.autocast(self._device, dtype=torch.bfloat16):
            loss = self.model(self._input).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def synchronize(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize()

    def block(self, guest: ToggledGuest, arm: str) -> float:
        """Seconds of a step, the device's time included; caches settle in one step before."""
        guest.switch(is_on=arm == "on")
        self.step()
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS_PER_BLOCK):
            self.step()
        self.synchronize()
        return (time.perf_counter() - begin) / STEPS_PER_BLOCK

    def num_waits(self, guest: ToggledGuest) -> int:
        """Steps under the guest, in a mode in which torch raises where one waits."""
        guest.switch(is_on=True)
        self.step()
        self.synchronize()
        if self._device != "cpu":
            torch.cuda.set_sync_debug_mode("error")
        found = 0
        for _ in range(STEPS_PER_BLOCK):
            try:
                self.step()
            except RuntimeError as error:
                if "synchron" not in str(error):
                    raise
                found += 1
        if self._device != "cpu":
            torch.cuda.set_sync_debug_mode("default")
        return found


def main(device: str, num_rounds: int) -> None:
    job = Job(device)
    for _ in range(WARM_UP_STEPS):
        job.step()
    job.synchronize()
    assert dfx.init(run="gpu", role="trainer", rank=0)
    reader = SegmentReader(recorder.current.path)  # type: ignore[union-attr]
    guest = ToggledGuest(job.model)
    num_waits = job.num_waits(guest)
    draw = random.Random(SEED)
    seconds = [
        {arm: job.block(guest, arm) for arm in draw.sample(ARMS, len(ARMS))}
        for _ in range(num_rounds + 1)
    ]
    guest.switch(is_on=True)
    num_records = len(list(reader.poll()))
    dfx.shutdown()
    reported = {"seconds": seconds[1:], "num_waits": num_waits, "num_records": num_records}
    print(json.dumps(reported))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
