"""Device time of collectives, on a device of ours: torch's fake group takes meta tensors.

Groups, works and patches are torch's own; only the accelerator's public interface is stood in for,
with a clock that the test moves. tests/gpu runs the same code on CUDA and NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.testing._internal.distributed.fake_pg import FakeStore

import dfx_agent.shim as dfx
from dfx_agent.shim import patches, recorder
from dfx_agent.shim.torch import collectives, device_time
from dfx_agent.shim.torch.hooks import torch_hooks
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import COLLECTIVE, COUNT, DEVICE_TIME, KIND_MASK, STAGE

NUM_EVENTS_SYNC, NUM_EVENTS_ASYNC = 2, 3


class Accelerator:
    """``now_ms`` is the device's clock; ``calls`` are what was asked of it, in order."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.is_capturing = self.is_broken = False
        self.has_arrived = True
        self.calls: list[str] = []
        self.events: list[Any] = []

    def module(self) -> SimpleNamespace:
        device = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                device.events.append(self)

            def record(self, stream: str) -> None:
                if device.is_broken:
                    raise RuntimeError("device-side assert triggered")
                assert stream == "stream of meta"
                device.calls.append("record")
                self.at_ms = device.now_ms

            def query(self) -> bool:
                device.calls.append("query")
                return device.has_arrived

            def elapsed_time(self, other: Any) -> float:
                assert device.has_arrived, "waited for the device"
                return float(other.at_ms - self.at_ms)

        return SimpleNamespace(
            Event=Event,
            current_stream=lambda place: f"stream of {place.type}",
            is_current_stream_capturing=lambda: device.is_capturing,
        )


class Job:
    """One rank of two; ``told`` are (name, sequence, stood, duration) since the last call."""

    def __init__(self) -> None:
        self.num_enqueued = 0
        self.issue_ms = self.wait_ms = 0.0
        self.gives_work = self.does_number = True

    def listen(self) -> None:
        """To what the guest records from now on."""
        self.reader = SegmentReader(recorder.current.path)

    def rows(self, kind: int) -> list[Any]:
        return [row for row in self.reader.poll() if row[8] & KIND_MASK == kind]

    def told(self) -> list[tuple[str, int, float, int]]:
        rows = self.rows(DEVICE_TIME)
        return [(self.reader.name(r[9]), r[4], r[3], r[2] - r[1]) for r in rows]


@pytest.fixture
def device(monkeypatch) -> Accelerator:
    accelerator = Accelerator()
    monkeypatch.setattr(torch, "meta", accelerator.module(), raising=False)
    return accelerator


@pytest.fixture(params=["1"])
def job(request, tmp_path, monkeypatch, device) -> Iterator[Job]:
    """What the group enqueues moves the device's clock by ``issue_ms``, a wait by ``wait_ms``."""
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "")
    monkeypatch.setenv("DFX_DEVICE_TIME", request.param)
    monkeypatch.setattr(device_time, "_sampled", (0, 0))
    tmp_path.chmod(0o700)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    job, group, work = Job(), dist.ProcessGroup, dist.Work
    all_reduce, waited = group.allreduce, work.wait

    def enqueue(*args: Any) -> Any:
        all_reduce(*args)
        job.num_enqueued += job.does_number
        device.now_ms += job.issue_ms
        return done_work() if job.gives_work else None

    def wait(*args: Any) -> Any:
        device.now_ms += job.wait_ms
        return waited(*args)

    # a fake group does not count and its works have a wait of their own; NCCL's have that of Work
    # and give none where torch would wait on its next line
    monkeypatch.setattr(group, "_get_sequence_number_for_group", lambda _: job.num_enqueued)
    monkeypatch.setattr(group, "allreduce", enqueue)
    monkeypatch.setattr(work, "wait", wait)
    dfx.init(run="device", directory=str(tmp_path))
    job.listen()
    job.num_enqueued = 1  # the communicator is there
    dfx.set_step(16)
    yield job
    torch_hooks.remove()
    dfx.shutdown()
    recorder.current = None
    dist.destroy_process_group()


def done_work() -> Any:
    future: Any = torch.futures.Future()
    future.set_result([])
    return _create_work_from_future(future)


def tensor() -> torch.Tensor:
    return torch.ones(4, device="meta")


def test_a_synchronous_collective_is_in_the_current_stream_from_call_to_return(job, device):
    job.gives_work, job.issue_ms = False, 7.0
    with dfx.stage("actor_update"):
        dist.all_reduce(tensor())
    assert "query" not in device.calls
    dfx.set_step(17)
    rows = list(job.reader.poll())
    (row,) = [row for row in rows if row[8] == DEVICE_TIME]
    (host,) = [row for row in rows if row[8] & KIND_MASK == COLLECTIVE]
    (stage,) = [row for row in rows if row[8] == STAGE]
    assert (job.reader.name(row[9]), row[4], row[3]) == ("all_reduce@0", 2, 0.007)
    assert (row[1], row[2] - row[1]) == (host[1], 7_000_000)
    assert (row[5], row[6], row[7]) == (0, stage[5], host[7])
    assert (host[4], host[9]) == (row[4], row[9])


def test_an_asynchronous_one_stands_only_in_its_wait(job, device):
    job.wait_ms = 3.0
    work = dist.all_reduce(tensor(), async_op=True)
    device.now_ms += 20.0  # the job computes
    work.wait()
    work.wait()
    dfx.set_step(17)
    assert job.told() == [("all_reduce@0", 2, 0.003, 23_000_000)]


def test_before_its_own_rank_arrives_a_stream_does_not_stand_for_the_collective(job, device):
    """The stream that issues is behind the one that waits."""
    work = dist.all_reduce(tensor(), async_op=True)
    device.events[0].at_ms, job.wait_ms = 10.0, 15.0
    work.wait()
    dfx.set_step(17)
    assert job.told() == [("all_reduce@0", 2, 0.005, 5_000_000)]


def test_a_backend_that_leaves_the_wait_to_torch_is_measured_through_it(job):
    job.issue_ms, job.wait_ms = 1.0, 6.0
    dist.all_reduce(tensor())
    dfx.set_step(17)
    assert job.told() == [("all_reduce@0", 2, 0.006, 7_000_000)]


def test_events_are_read_when_they_have_completed_and_never_waited_for(job, device):
    job.gives_work, job.issue_ms = False, 2.0
    device.has_arrived = False
    dist.all_reduce(tensor())
    dist.all_reduce(tensor())
    for step in (17, 18, 19):
        dfx.set_step(step)
    assert job.told() == []
    assert device.calls.count("query") == 3, "the first that is not there ends the look"
    device.has_arrived = True
    dfx.set_step(20)
    assert [(row[1], row[2]) for row in job.told()] == [(2, 0.002), (3, 0.002)]


def test_only_every_16th_step_is_measured_and_none_without_a_number(job, device):
    job.gives_work = False
    for step in range(17, 50):
        dfx.set_step(step)
        dist.all_reduce(tensor())
    assert device.calls.count("record") == 2 * NUM_EVENTS_SYNC
    assert [row[1] for row in job.told()] == [32 - 15, 48 - 15]
    recorder.current.process_step = -1
    dist.all_reduce(tensor())
    assert device.calls.count("record") == 2 * NUM_EVENTS_SYNC


def test_the_first_collective_of_a_group_is_left_out(job, device):
    job.num_enqueued, job.gives_work = 0, False
    dist.all_reduce(tensor())
    assert device.calls == []
    dist.all_reduce(tensor())
    assert device.calls == ["record"] * NUM_EVENTS_SYNC


def test_events_are_used_again(job, device):
    for step in range(16, 160, 16):
        dfx.set_step(step)
        for _ in range(5):
            dist.all_reduce(tensor(), async_op=True).wait()
    assert len(device.events) == 5 * NUM_EVENTS_ASYNC
    dfx.set_step(161)
    assert len(job.told()) == 9 * 5


def test_not_more_than_256_of_a_step_and_the_rest_is_counted(job, device):
    job.gives_work = False
    device.has_arrived = False
    for _ in range(300):
        dist.all_reduce(tensor())
    assert len(device.events) == 256 * NUM_EVENTS_SYNC
    dfx.set_step(32)  # the device does not keep up
    dist.all_reduce(tensor())
    assert len(device.events) == 256 * NUM_EVENTS_SYNC
    skipped = [row for row in job.rows(COUNT) if job.reader.name(row[9]) == device_time.SKIPPED]
    assert sum(row[3] for row in skipped) == 300 - 256 + 1
    device.has_arrived = True
    dfx.set_step(33)
    assert len(job.told()) == 256
    assert not recorder.current._deferred.pending


def test_works_that_nobody_waits_for_are_bounded_too(job, device):
    works = [dist.all_reduce(tensor(), async_op=True) for _ in range(300)]
    assert len(works) == 300
    assert len(device.events) == 256


def test_a_capture_of_a_graph_is_left_alone(job, device):
    device.is_capturing = True
    job.gives_work = False
    dist.all_reduce(tensor())
    job.gives_work = True
    dist.all_reduce(tensor(), async_op=True).wait()
    device.is_capturing = False
    work = dist.all_reduce(tensor(), async_op=True)
    device.is_capturing = True
    work.wait()
    dfx.set_step(17)
    assert device.calls == ["record"]
    device.is_capturing = False
    dfx.set_step(18)
    assert job.told() == []


def test_what_was_only_put_together_is_not_measured(job, device):
    """Between the begin and the end of a coalesced group NCCL does not number a call."""
    job.gives_work = job.does_number = False
    dist.all_reduce(tensor())
    dfx.set_step(17)
    assert device.calls == ["record"]
    assert job.told() == []


def test_a_device_that_cannot_do_it_is_not_asked_again_and_said_to_have_failed(job, device):
    device.is_broken = True
    for _ in range(3):
        dist.all_reduce(tensor())
        dist.all_reduce(tensor(), async_op=True).wait()
    assert job.num_enqueued == 1 + 6
    assert len(device.events) == 1
    assert patches.registry["device_time"].state == "failed"
    assert collectives.PATCHES.state == "active"
    rows = list(job.reader.poll())
    assert sum(row[8] & KIND_MASK == COLLECTIVE for row in rows) == 6, "the host's are told of"
    assert job.reader.live_words()[4] == 1
    assert not job.reader.inflight()


@pytest.mark.parametrize("job", ["", "0", "yes"], indirect=True)
def test_nothing_is_asked_of_a_device_unless_the_environment_says_1(job, device):
    dist.all_reduce(tensor())
    dist.all_reduce(tensor(), async_op=True).wait()
    dfx.set_step(17)
    assert device.calls == device.events == job.told() == []
    assert patches.registry["device_time"].state == "off"


def test_the_hosts_tensors_do_not_come_here(job, device, monkeypatch):
    monkeypatch.setattr(device_time, "begin", None)  # calling it would be an error
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(4), async_op=True).wait()
    dfx.set_step(17)
    assert device.calls == []
    assert job.reader.live_words()[4] == 0


def test_a_hook_that_was_taken_back_stops_between_issue_and_wait(job, device):
    work = dist.all_reduce(tensor(), async_op=True)
    device_time.PATCHES.restore()
    work.wait()
    dfx.set_step(17)
    assert device.calls == ["record"]
    assert job.told() == []
    assert device_time._free == {}
