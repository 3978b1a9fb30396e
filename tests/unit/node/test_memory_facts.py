"""What is told of a process's memory; of whom it has hardly changed no limit is read."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dfx_agent.facts.memory import DeviceUse
from dfx_agent.facts.seat import ProcessId
from dfx_agent.node import memory_facts as reading
from dfx_agent.node.host.cgroup import MemoryGroup
from dfx_agent.node.memory import ProcessMemory
from dfx_agent.node.memory_facts import MemoryLimits, MemoryReader
from dfx_agent.node.time.account import SpanEvent, StepInterval
from dfx_agent.node.time.closed_step import ClosedStep
from dfx_agent.wire.records import STAGE, WAIT

GIB = 2**30
MIB, SECOND = 2**20, 10**9


@dataclass
class Rank:
    """As much of a process as is asked."""

    id: ProcessId = field(default_factory=lambda: ProcessId("trainer", "0", 1))
    step: int = 64
    is_living: bool = True
    gauges: dict = field(default_factory=dict)
    memory: ProcessMemory = field(default_factory=ProcessMemory)
    windows: deque = field(default_factory=deque)
    stamps: dict = field(default_factory=dict)

    def passes(self, mib_per_step: float) -> None:
        for step in range(1, 65):
            self.memory.trend.add(step, 100 * MIB + step * mib_per_step * MIB)
            self.windows.append(ClosedStep(StepInterval(step, step * SECOND, (step + 2) * SECOND)))


def test_samples_steps_and_devices_are_reported():
    rank = Rank()
    rank.passes(1.0)
    rank.gauges = {
        "memory/limit_bytes@cuda:0": 80.0, "memory/reserved_bytes@cuda:0": 60.0,
        "memory/allocated_bytes@cuda:0": 20.0,
    }  # fmt: skip
    rank.memory.sample_devices(64, rank.gauges)
    (facts,) = MemoryReader().facts([rank])
    assert (facts.process, facts.step, facts.step_seconds) == (rank.id, 64, 2.0)
    assert facts.samples == tuple((n, (100 + n) * MIB) for n in range(1, 65))
    assert [len(samples) for samples in facts.sparse_samples] == [32, 16, 8]
    assert facts.devices == (
        DeviceUse(
            "cuda:0", 80.0, 60.0, ((64, 40.0),), allocated_samples=((64, 20.0),), peak_bytes=20.0
        ),
    )
    assert [limit.path for limit in facts.limits] == [""]


def test_memory_of_tensors_ignores_odd_steps():
    rank = Rank()
    rank.passes(1.0)
    for step in range(1, 201):
        taken = 70.0 if step == 80 else 50.0 if step <= 100 else 20.0
        rank.gauges = {"memory/allocated_bytes@cuda:0": taken}
        rank.memory.sample_devices(step, rank.gauges)
    (facts,) = MemoryReader().facts([rank])
    assert facts.devices[0].allocated_samples[0][0] == 137
    assert facts.devices[0].highest_before_bytes == 50.0


def test_an_ended_rank_and_constant_memory_have_no_forecast():
    dead, steady = Rank(is_living=False), Rank()
    steady.passes(0.01)
    (facts,) = MemoryReader().facts([dead, steady])
    assert facts.limits == ()
    assert facts.samples


def test_a_process_before_its_first_step_has_no_step_time():
    (facts,) = MemoryReader().facts([Rank()])
    assert (facts.step_seconds, facts.samples, facts.devices) == (None, (), ())


def test_memory_unused_in_rollout_is_reported_where_weights_are_offloaded():
    rank = Rank()
    rank.gauges = {
        "memory/stage/reserved_bytes/rollout@cuda:0": 40.0,
        "memory/stage/allocated_bytes/rollout@cuda:0": 2.0,
        "memory/stage/reserved_bytes/backward@cuda:0": 70.0,
    }
    for step in (1, 2):
        rank.memory.sample_devices(step, rank.gauges)
    (facts,) = MemoryReader().facts([rank])
    assert facts.devices == (DeviceUse("cuda:0", None, None),), "nobody said that it offloads"
    rank.stamps = {("offload", 0): None}
    (facts,) = MemoryReader().facts([rank])
    assert facts.devices[0].offloaded_samples == ((1, 38.0), (2, 38.0))


def test_of_who_has_no_rollout_it_is_what_was_unused_before_its_states_came_back():
    rank = Rank()
    rank.gauges = {
        "memory/reserved_bytes@cuda:0": 60.0,
        "memory/at/start/offload/reserved_bytes/actor_update@cuda:0": 40.0,
        "memory/at/start/offload/allocated_bytes/actor_update@cuda:0": 2.0,
        "memory/at/start/offload/reserved_bytes/ref_logprob@cuda:0": 33.0,
        "memory/at/start/offload/allocated_bytes/ref_logprob@cuda:0": 3.0,
        "memory/at/end/offload/reserved_bytes/actor_update@cuda:0": 2.0,
        "memory/at/end/offload/allocated_bytes/actor_update@cuda:0": 2.0,
        "memory/at/start/offload/resident_bytes/actor_update@host": 7.0,
    }
    rank.memory.sample_devices(1, rank.gauges)
    (facts,) = MemoryReader().facts([rank])
    assert [device.device for device in facts.devices] == ["cuda:0"]
    assert facts.devices[0].offloaded_samples == ((1, 30.0),), "the least of its stages"


def test_memory_outside_the_allocator_counts_where_it_is_steady():
    memory = ProcessMemory()
    seen = []
    for own, reserved in ((9, 4), (9, 4), (30, 4), (30, 25), (30, 25), (28, 25), (12, 4), (14, 4)):
        memory.note_driver({"nvidia:3": own}, {"memory/reserved_bytes@cuda:0": reserved})
        beside = memory.beside_allocator
        seen.append(beside and (beside.now_bytes, beside.least_bytes))
    first = [None, (5, 5), (26, 5), (26, 5), (5, 5), (3, 3), (3, 3), (10, 3)]
    assert seen == first
    assert memory.beside_allocator.most_bytes == 26
    memory.note_driver({}, {"memory/reserved_bytes@cuda:0": 4})
    memory.note_driver({"nvidia:3": 1, "nvidia:4": 1}, {"memory/reserved_bytes@cuda:0": 4})
    assert memory.beside_allocator.now_bytes == 10, "not told, or of other devices"


def test_resident_and_virtual_memory_are_of_the_stage_that_was_opened_last():
    memory = ProcessMemory()
    spans = (
        SpanEvent(1, 0, STAGE, "rollout", 10, None),
        SpanEvent(2, 1, STAGE, "reward", 20, None),
        SpanEvent(3, 2, WAIT, "queue", 30, None),
    )
    memory.sample(1, os.getpid(), None, spans, is_step_over=False)
    memory.sample(2, os.getpid(), None, spans[:1], is_step_over=False)
    assert list(memory.stage_bytes) == ["reward"], "once a second"
    had = memory.stage_bytes["reward"]
    assert had == memory.bytes
    assert 0 < had.anonymous < had.resident < had.virtual
    for number in range(100):
        memory.sample(
            (number + 2) * SECOND, os.getpid(), None,
            (SpanEvent(1, 0, STAGE, f"stage-{number}", 10, None),), is_step_over=False,
        )  # fmt: skip
    assert len(memory.stage_bytes) == 64


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(reading, "available_bytes", lambda: 900 * GIB)
    monkeypatch.setattr(reading, "total_bytes", lambda: 1000 * GIB)


def group(folder: Path, limit: str, used_gib: float) -> MemoryGroup:
    folder.mkdir()
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{int(used_gib * GIB)}\n")
    return MemoryGroup(str(folder), is_v2=True)


def test_a_process_meets_its_groups_that_have_a_limit_and_the_host(host, tmp_path):
    own = group(tmp_path / "own", "max", 1)
    pod = group(tmp_path / "pod", str(16 * GIB), 8)
    full = group(tmp_path / "full", str(GIB), 2)
    known = [limit[1:] for limit in MemoryLimits().read((own, pod, full))]
    assert known == [
        (pod.path, 16 * GIB, 8 * GIB), (full.path, GIB, 0), ("", 1000 * GIB, 900 * GIB)
    ]  # fmt: skip


def test_a_host_that_does_not_say_has_no_limit(monkeypatch):
    monkeypatch.setattr(reading, "available_bytes", lambda: None)
    assert MemoryLimits().read(()) == ()


def test_what_is_free_is_read_again_after_a_second(host, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(reading.time, "monotonic", lambda: now[0])
    limits = MemoryLimits()

    def free(available_gib: int) -> int:
        monkeypatch.setattr(reading, "available_bytes", lambda: available_gib * GIB)
        (limit,) = limits.read(())
        return limit.free_bytes // GIB

    assert (free(10), free(9)) == (10, 10)
    now[0] += 1.0
    assert free(9) == 9
