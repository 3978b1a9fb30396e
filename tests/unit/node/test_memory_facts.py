"""What is told of a process's memory; of whom it has hardly changed no limit is read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dfx_agent.facts.memory import DeviceUse
from dfx_agent.facts.seat import ProcessId
from dfx_agent.node.memory.use import ProcessMemory
from dfx_agent.node.memory_facts import MemoryReader
from dfx_agent.node.process import ClosedStep
from dfx_agent.node.time.account import Window

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
            self.windows.append(ClosedStep(Window(step, step * SECOND, (step + 2) * SECOND)))


def test_samples_steps_and_devices_are_told():
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
    assert facts.devices == (DeviceUse("cuda:0", 80.0, 60.0, ((64, 40.0),)),)
    assert [limit.path for limit in facts.limits] == [""]


def test_who_ended_is_not_told_of_and_whose_memory_stays_meets_no_limit():
    dead, steady = Rank(is_living=False), Rank()
    steady.passes(0.01)
    (facts,) = MemoryReader().facts([dead, steady])
    assert facts.limits == ()
    assert facts.samples


def test_a_process_before_its_first_step_has_no_step_time():
    (facts,) = MemoryReader().facts([Rank()])
    assert (facts.step_seconds, facts.samples, facts.devices) == (None, (), ())


def test_what_a_rollout_left_unused_is_told_of_who_offloads():
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
    assert facts.devices[0].kept_samples == ((1, 38.0), (2, 38.0))
