"""What the guest's own thread sees from look to look, on a clock of the test."""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest

from dfx_agent.shim import clients, span_writer, stacks
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.torch import flight, watch_thread
from dfx_agent.shim.torch.watch_thread import WatchThread
from dfx_agent.wire import Identity
from dfx_agent.wire.records import REMOTE_WAIT, STAGE, WAIT

SECOND = 10**9


class Owner:
    _num_open = 1


class Job:
    """A process that is looked at once a second."""

    def __init__(self, writer: Recorder, clock: types.SimpleNamespace) -> None:
        self.writer = writer
        self.clock = clock
        self.watch = WatchThread(lambda: None)
        self.stacks_at: list[int] = []
        self.flights_at: list[int] = []

    def pass_stage(self) -> None:
        opened = self.writer.open(Owner(), "rollout", STAGE)
        assert opened is not None
        span_writer.innermost.set(None)
        self.writer.close(opened, None)

    def look(self, second: int) -> None:
        self.clock.now_ns = 1000 * SECOND + second * SECOND
        self.watch._run_checks(self.writer)


@pytest.fixture
def job(dfx_dir, monkeypatch) -> Iterator[Job]:
    writer = Recorder(str(dfx_dir), Identity(run="r", role="trainer", host="h"))
    clock = types.SimpleNamespace(now_ns=0)
    job = Job(writer, clock)
    watched = types.SimpleNamespace(monotonic_ns=lambda: clock.now_ns, thread_time_ns=lambda: 0)
    monkeypatch.setattr(watch_thread, "time", watched)

    def note(seconds: list[int]) -> bool:
        seconds.append(clock.now_ns // SECOND - 1000)
        return True

    monkeypatch.setattr(stacks, "write_stacks", lambda _segment: note(job.stacks_at))
    monkeypatch.setattr(flight, "write_flight", lambda _segment: note(job.flights_at))
    yield job
    span_writer.innermost.set(None)
    writer.finish()


def test_a_job_with_short_stages_makes_progress(job):
    """It writes nothing then, and in time once it stands still: seen 300 s late."""
    for second in range(400):
        job.pass_stage()
        job.look(second)
    assert job.stacks_at == []
    for second in range(400, 440):
        job.look(second)
    assert job.stacks_at == [409, 429]
    assert job.flights_at == [409]


def test_the_next_stuck_place_is_written_again(job):
    for second in range(40):
        job.look(second)
    job.pass_stage()
    for second in range(40, 60):
        job.look(second)
    assert job.stacks_at == [10, 30, 50]
    assert job.flights_at == [10, 50]


def test_a_job_without_stages_makes_progress_by_its_steps(job):
    for second in range(100):
        job.writer.begin_step(second)
        job.look(second)
    assert job.stacks_at == []


def test_our_own_spans_and_gauges_are_no_sign_of_life(job):
    for second in range(100):
        job.look(second)
    assert job.stacks_at == [10, 30, 60]


def test_a_job_that_asks_a_server_again_and_again_stands_still(job, monkeypatch):
    for second in range(100):
        monkeypatch.setattr(clients, "num_waits", clients.num_waits + 1)
        opened = job.writer.open(Owner(), REMOTE_WAIT, WAIT)
        if second % 3 == 0:  # an answer that is waited for while it is looked at
            job.look(second)
        span_writer.innermost.set(None)
        job.writer.close(opened, None)
        if second % 3:
            job.look(second)
    assert job.stacks_at == [10, 30, 60]
