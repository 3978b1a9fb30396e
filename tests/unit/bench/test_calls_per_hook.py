"""How many Python functions of the guest run per event: in a training each of them runs cold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dfx_agent.shim as dfx
from bench.hooked_calls import single_rank
from bench.toggled_guest import ToggledGuest
from dfx_agent.shim import recorder
from dfx_agent.shim.torch.hooks import torch_hooks

GUEST = str(Path(dfx.__file__).parents[1])
NUM_WARM_UPS = 4  # the last parameter of DDP is learned, names are in the table


class Job:
    """One rank; each method is one event that the guest hooks into."""

    def __init__(self) -> None:
        self.model = DistributedDataParallel(nn.Linear(1, 1))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self._loss = torch.zeros(())

    def forward(self) -> None:
        self._loss = self.model(torch.zeros(1, 1)).sum()

    def backward(self) -> None:
        self._loss.backward()

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def step(self) -> None:
        self._optimizer.step()

    def reduce(self) -> None:
        dist.all_reduce(torch.ones(1))

    def reduce_async(self) -> None:
        dist.all_reduce(torch.ones(1), async_op=True).wait()

    def events(self) -> tuple[Callable[[], None], ...]:
        return self.forward, self.backward, self.clip, self.step, self.reduce, self.reduce_async

    def run(self) -> None:
        for event in self.events():
            event()


@pytest.fixture(scope="module")
def num_calls(tmp_path_factory) -> dict[str, int]:
    patch = pytest.MonkeyPatch()
    patch.delenv("DFX_DISABLE_HOOKS", raising=False)
    directory = tmp_path_factory.mktemp("segments")
    directory.chmod(0o700)
    with single_rank():
        dfx.init(run="bench", directory=str(directory))
        job = Job()
        ToggledGuest(job.model).switch(is_on=True)
        for _ in range(NUM_WARM_UPS):
            job.run()
        found = {event.__name__: _count(event) for event in job.events()}
        torch_hooks.remove()
        dfx.shutdown()
        recorder.current = None
    patch.undo()
    return found


def _count(event: Callable[[], None]) -> int:
    names: list[str] = []

    def note(frame, what, _argument) -> None:
        if what == "call" and frame.f_code.co_filename.startswith(GUEST):
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        event()
    finally:
        sys.setprofile(None)
    return len(names)


@pytest.mark.parametrize(
    ("event", "limit"),
    [
        ("forward", 9),
        ("backward", 26),
        ("clip", 5),
        ("step", 23),
        ("reduce", 6),
        ("reduce_async", 9),
    ],
)
def test_an_event_runs_few_functions_of_the_guest(num_calls, event, limit) -> None:
    assert 0 < num_calls[event] <= limit, "each costs 1 to 3 us there"
