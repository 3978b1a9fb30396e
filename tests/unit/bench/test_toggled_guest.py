"""Off is off: what torch calls is torch's own; on again, the hooks see the next call."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dfx_agent.shim as dfx
from bench.disturbed_training import NUM_DELAYED, delayed_rank, first_delayed_step
from bench.hooked_calls import single_rank
from bench.toggled_guest import ToggledGuest
from dfx_agent.shim import recorder
from dfx_agent.shim.torch.hooks import torch_hooks
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import COLLECTIVE, KIND_MASK


def names_after(work, path: str) -> set[str]:
    reader = SegmentReader(path)
    reader.poll()
    work()
    records = reader.poll() + reader.poll()
    names = {reader.name(r[9]) or "" for r in records if r[8] & KIND_MASK <= COLLECTIVE}
    reader.close()
    return {name.partition("@")[0] for name in names}


@pytest.fixture
def replica(tmp_path, monkeypatch):
    monkeypatch.delenv("DFX_DISABLE_HOOKS", raising=False)
    directory = tmp_path / "segments"
    directory.mkdir(mode=0o700)
    with single_rank():
        dfx.init(run="bench", directory=str(directory))
        yield DistributedDataParallel(nn.Linear(1, 1))
        torch_hooks.remove()
        dfx.shutdown()
        recorder.current = None


def test_off_is_what_torch_had_and_on_sees_everything_again(replica) -> None:
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.0)

    def step() -> None:
        replica(torch.zeros(1, 1)).backward()
        nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
        optimizer.step()
        dist.barrier()

    assert recorder.current is not None
    path = recorder.current.path
    guest = ToggledGuest(replica)
    guest.switch(is_on=False)
    optimizers = sys.modules[torch.optim.Optimizer.__module__]
    assert not hasattr(dist.ProcessGroup.barrier, "__wrapped__")
    assert not hasattr(torch.autograd.backward, "__wrapped__")
    assert not optimizers._global_optimizer_pre_hooks
    assert not replica._forward_pre_hooks
    assert names_after(step, path) == set()
    for _ in range(2):
        guest.switch(is_on=True)
        step()  # in which DDP's hook finds the last parameter
        seen = names_after(step, path)
        assert {"forward", "backward", "optimizer", "barrier", "ddp_gradients"} <= seen
        guest.switch(is_on=False)
        assert names_after(step, path) == set()


def test_each_rank_is_slow_in_turn_and_never_two_at_once() -> None:
    slow = [delayed_rank(step, num_trials=4, num_ranks=4) for step in range(1, 200)]
    assert [rank for rank in dict.fromkeys(slow) if rank is not None] == [3, 2, 1, 0]
    assert slow.count(2) == NUM_DELAYED
    assert slow[first_delayed_step(0) - 2] is None
    assert slow[first_delayed_step(0) - 1] == 3
    assert slow[-1] is None
