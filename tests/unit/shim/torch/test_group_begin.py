"""The rank of a process that no launcher numbers, from its ``init_process_group``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import dfx_agent.shim as dfx
from dfx_agent.shim import recorder
from dfx_agent.shim.lifecycle import guest
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.torch import group_begin
from dfx_agent.wire import Identity


class Distributed(ModuleType):
    """As much of torch.distributed as is asked: the group that was begun last."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.rank, self.world_size = -1, -1
        self.init_process_group = self._begin

    def _begin(self, backend: str, *, rank: int, world_size: int) -> str:
        if backend == "broken":
            raise ValueError("no such backend")
        self.rank, self.world_size = rank, world_size
        return backend

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world_size


@pytest.fixture
def distributed(monkeypatch) -> Iterator[Distributed]:
    fake = Distributed("torch.distributed")
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
    monkeypatch.setattr(group_begin._Given, "writer", None)
    monkeypatch.delenv("RANK", raising=False)
    patches = PatchSet("group_begin.test")
    with monkeypatch.context() as hooks:
        hooks.delenv("DFX_DISABLE_HOOKS", raising=False)
        patches.install(group_begin.patch)
    yield fake
    patches.restore()
    guest.stop()


def begin(distributed: Distributed, rank: int, world_size: int = 2) -> None:
    assert distributed.init_process_group("gloo", rank=rank, world_size=world_size) == "gloo"


def identity() -> Identity:
    assert recorder.current is not None
    return recorder.current.identity


def test_the_rank_is_what_the_job_gave(distributed, dfx_dir):
    assert dfx.init(run="r", role="Sampler")
    begin(distributed, 1)
    assert (identity().rank, identity().world_size, identity().role) == (1, 2, "Sampler")


def test_who_has_a_process_group_is_no_driver(distributed, dfx_dir):
    assert dfx.init(run="r")
    assert identity().role == "driver"
    begin(distributed, 0)
    assert (identity().rank, identity().role) == (0, "trainer")


def test_a_rank_that_a_launcher_or_the_job_said_stays(distributed, dfx_dir):
    assert dfx.init(run="r", rank=7, world_size=8)
    begin(distributed, 1)
    assert (identity().rank, identity().world_size) == (7, 8)


def test_a_later_group_of_the_whole_job_changes_what_an_earlier_one_gave(distributed, dfx_dir):
    assert dfx.init(run="r")
    begin(distributed, 1)
    begin(distributed, 3, 4)
    assert (identity().rank, identity().world_size) == (3, 4)


def test_a_process_that_is_armed_begins_with_its_rank(distributed, monkeypatch):
    started = []
    monkeypatch.setattr(recorder, "current", None)
    monkeypatch.setattr(recorder, "start_late", lambda **known: started.append(known))
    begin(distributed, 1)
    assert started == [{"rank": 1, "world_size": 2}]
    monkeypatch.setenv("RANK", "5")
    begin(distributed, 1)
    assert len(started) == 1, "the environment says it, when something is recorded"


def test_the_jobs_exception_is_its_own_and_ours_is_counted(distributed, dfx_dir, monkeypatch):
    assert dfx.init(run="r")
    with pytest.raises(ValueError, match="no such backend"):
        distributed.init_process_group("broken", rank=1, world_size=2)
    assert identity().rank == -1
    monkeypatch.setattr(distributed, "get_rank", lambda: 1 / 0)
    begin(distributed, 1)
    assert identity().rank == -1
