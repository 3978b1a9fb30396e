"""What is kept of process groups, with a real group of one rank."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist

import dfx_agent.shim as dfx
from bench.hooked_calls import single_rank
from dfx_agent.shim import recorder
from dfx_agent.shim.torch import collectives, group_end
from dfx_agent.shim.torch.hooks import torch_hooks
from dfx_agent.wire import SegmentReader


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.delenv("DFX_DISABLE_HOOKS", raising=False)
    tmp_path.chmod(0o700)
    with single_rank():
        dfx.init(run="groups", directory=str(tmp_path))
        yield SegmentReader(recorder.current.path)
        torch_hooks.remove()
        dfx.shutdown()
        recorder.current = None


def test_a_group_that_is_gone_leaves_its_seats(reader) -> None:
    group = dist.new_group([0])
    dist.all_reduce(torch.ones(1), group=group)
    known = collectives.group_of(group)
    (cached_calls,) = known.caches
    assert id(group) in cached_calls
    key = id(group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert key not in cached_calls


def test_another_writer_gets_records_of_its_own(reader, tmp_path) -> None:
    dist.all_reduce(torch.ones(1))
    first, calls = recorder.current, collectives.num_calls()
    recorder.current = None  # as in a forked child until its first record
    dist.all_reduce(torch.ones(1))
    assert collectives.num_calls() == calls
    recorder.current = recorder.Recorder(str(tmp_path), first.identity)
    dist.all_reduce(torch.ones(1))
    other = SegmentReader(recorder.current.path)
    names = [other.name(row[9]) for row in other.poll()]
    assert [reader.name(row[9]) for row in reader.poll()].count("all_reduce@0") == 1
    first.finish()
    assert names.count("all_reduce@0") == 1
    assert not other.inflight()
    assert not other.live_words()[4]


def test_the_guests_thread_stands_aside_while_all_groups_are_destroyed(reader, monkeypatch) -> None:
    monkeypatch.setattr(group_end._Begun, "ns", None)
    dist.destroy_process_group(dist.new_group([0]))
    assert group_end.may_read_groups(), "the job goes on"
    seen = []
    monkeypatch.setattr(
        dist.ProcessGroup, "shutdown", lambda _group: seen.append(group_end.may_read_groups())
    )
    dist.destroy_process_group()
    assert seen == [False]
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)  # the fixture's, again
    monkeypatch.setattr(group_end._Begun, "ns", group_end._Begun.ns - group_end.ASIDE_NS)
    assert group_end.may_read_groups()


def test_the_function_that_destroys_groups_is_put_back(reader) -> None:
    places = dist, dist.distributed_c10d
    ours = [place.destroy_process_group.__code__.co_filename for place in places]
    assert all(file.endswith("group_end.py") for file in ours)
    collectives.PATCHES.restore()
    theirs = [place.destroy_process_group for place in places]
    assert theirs[0] is theirs[1]
    assert "dfx_agent" not in theirs[0].__code__.co_filename
