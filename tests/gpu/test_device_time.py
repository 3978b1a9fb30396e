"""Device time of collectives under real NCCL: what events say, and nothing waits for a device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")

import torch.distributed as dist  # noqa: E402 (after the visible skip)

import dfx_agent.shim as dfx  # noqa: E402
from dfx_agent.shim import patches, recorder  # noqa: E402
from dfx_agent.shim.torch import device_time  # noqa: E402
from dfx_agent.shim.torch.hooks import torch_hooks  # noqa: E402
from dfx_agent.wire import SegmentReader  # noqa: E402
from dfx_agent.wire.records import DEVICE_TIME  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


class Job:
    """One rank; ``told`` are (name, sequence, stood seconds, duration seconds) since last asked."""

    def __init__(self) -> None:
        self.reader = SegmentReader(recorder.current.path)

    def told(self) -> list[tuple[str, int, float, float]]:
        rows = [row for row in self.reader.poll() if row[8] == DEVICE_TIME]
        return [(self.reader.name(r[9]), r[4], r[3], (r[2] - r[1]) / 1e9) for r in rows]


@pytest.fixture(params=["1"])
def job(request, dfx_dir, monkeypatch) -> Iterator[Job]:
    """In step 16, one that is measured; the communicator and one pair of events are there."""
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "")
    monkeypatch.setenv("DFX_DEVICE_TIME", request.param)
    monkeypatch.setattr(device_time, "_sampled", (0, 0))
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
    assert dfx.init(role="trainer", rank=0, directory=str(dfx_dir))
    job = Job()
    dfx.set_step(16)
    for _ in range(2):
        dist.all_reduce(torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
    dfx.set_step(16)
    job.told()
    yield job
    torch.cuda.set_sync_debug_mode("default")
    torch_hooks.remove()
    dfx.shutdown()
    recorder.current = None
    dist.destroy_process_group()


def spin(milliseconds: float) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Keep the current stream busy, at least that long; events before and after."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    torch.cuda._sleep(int(milliseconds * 2_000_000))
    after.record()
    return before, after


def test_a_collective_behind_a_long_kernel_is_not_waited_for_and_not_charged_with_it(job):
    payload = torch.ones(4, device="cuda")
    before, after = spin(300)
    torch.cuda.set_sync_debug_mode("error")
    dist.all_reduce(payload)
    dfx.set_step(17)
    torch.cuda.set_sync_debug_mode("default")
    assert not torch.cuda.current_stream().query(), "the device was idle: this says nothing"
    assert job.told() == []
    torch.cuda.synchronize()
    dfx.set_step(18)
    ((name, sequence, stood, duration),) = job.told()
    assert (name, sequence) == ("all_reduce@0", 3)
    assert 0 <= stood <= duration + 1e-6
    assert stood < before.elapsed_time(after) / 1e3 / 2
    assert job.reader.live_words()[4] == 0


def test_a_stream_stands_for_what_it_waits_for_at_once(job):
    """An all-gather of one rank is a copy: bytes / bandwidth, some hundred microseconds."""
    whole = torch.ones(1024 * MIB, dtype=torch.uint8, device="cuda")
    out = torch.empty_like(whole)
    torch.cuda.synchronize()
    dist.all_gather_into_tensor(out, whole, async_op=True).wait()
    torch.cuda.synchronize()
    dfx.set_step(17)
    ((name, _, stood, duration),) = job.told()
    assert name == "all_gather_into_tensor@0"
    assert 20e-6 < stood <= duration + 1e-6


def test_work_that_is_over_when_it_is_waited_for_costs_its_stream_nothing(job):
    payload = torch.ones(4, device="cuda")
    work = dist.all_reduce(payload, async_op=True)
    before, after = spin(300)
    torch.cuda.set_sync_debug_mode("error")
    work.wait()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    dfx.set_step(17)
    ((_, _, stood, duration),) = job.told()
    kernel = before.elapsed_time(after) / 1e3
    assert stood < kernel / 10
    assert duration > kernel * 0.9


def test_events_are_used_again(job):
    payload = torch.ones(4, device="cuda")
    for step in range(16, 16 * 9, 16):
        dfx.set_step(step)
        for _ in range(4):
            dist.all_reduce(payload)
            dist.all_reduce(payload, async_op=True).wait()
        torch.cuda.synchronize()
    dfx.set_step(145)
    assert len(job.told()) == 8 * 8
    (events,) = device_time._free.values()
    assert len(events) <= 8 * 3


def test_a_capture_of_a_graph_goes_through_and_is_not_measured(job):
    payload = torch.full((4,), 2.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(payload)
        dist.all_reduce(payload, async_op=True).wait()
        payload *= 3
    graph.replay()
    torch.cuda.synchronize()
    dfx.set_step(17)
    assert job.told() == []
    assert payload.tolist() == [6.0] * 4
    assert job.reader.live_words()[4] == 0
    assert patches.registry["device_time"].state == "active"


@pytest.mark.parametrize("job", [""], indirect=True)
def test_nothing_is_measured_unless_the_environment_says_so(job, monkeypatch):
    monkeypatch.setattr(device_time, "Timing", None)  # making one would be an error
    dist.all_reduce(torch.ones(4, device="cuda"))
    dist.all_reduce(torch.ones(4, device="cuda"), async_op=True).wait()
    torch.cuda.synchronize()
    dfx.set_step(17)
    assert job.told() == []
    assert job.reader.live_words()[4] == 0
    assert patches.registry["device_time"].state == "off"


LATE_RANK = """
import os, sys, torch, torch.distributed as dist
import dfx_agent.shim as dfx
from dfx_agent.shim import recorder
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import DEVICE_TIME
rank = int(sys.argv[1])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", rank=rank, world_size=2, init_method=f"file://{sys.argv[2]}/store")
assert dfx.init(role="trainer", rank=rank, directory=sys.argv[2])
reader = SegmentReader(recorder.current.path)
payload = torch.ones(4, device="cuda")
dist.all_reduce(payload)
torch.cuda.synchronize()
dist.barrier()
dfx.set_step(16)
if rank == 1:
    torch.cuda._sleep(600_000_000)
if sys.argv[3] == "sync":
    dist.all_reduce(payload)
else:
    dist.all_reduce(payload, async_op=True).wait()
torch.cuda.synchronize()
dfx.set_step(17)
print(*[row[3] for row in reader.poll() if row[8] == DEVICE_TIME])
dfx.shutdown()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_rank_that_waits_for_the_other_stands_longer(dfx_dir, how):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 CUDA devices, one for each rank")
    known = {name: text for name, text in os.environ.items() if not name.startswith("DFX_")}
    environment = {**known, "DFX_DEVICE_TIME": "1", "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LATE_RANK, str(rank), str(dfx_dir), how],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        first, second = (float(rank.communicate(timeout=180)[0]) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert first > 0.1, "600 million cycles"
    assert second < first / 3
