"""What is kept of process groups, with a real group of one rank."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist

import dfx_agent.shim as dfx
from bench.hooked_calls import single_rank
from dfx_agent.shim import collectives, hooks, recorder
from dfx_agent.wire import SegmentReader


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.delenv("DFX_DISABLE_HOOKS", raising=False)
    tmp_path.chmod(0o700)
    with single_rank():
        dfx.init(run="groups", directory=str(tmp_path))
        yield SegmentReader(recorder.current.path)
        hooks.remove()
        dfx.shutdown()
        recorder.current = None


def test_a_group_that_is_gone_leaves_its_seats(reader) -> None:
    group = dist.new_group([0])
    dist.all_reduce(torch.ones(1), group=group)
    known = collectives.group_of(group)
    (seats,) = known.seated
    assert id(group) in seats
    key = id(group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert key not in seats


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
