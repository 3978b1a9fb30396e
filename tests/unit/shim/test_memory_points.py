"""What is held before and after states move: told by the job's own thread, with ROLL's names."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import dfx_agent.shim as dfx
from dfx_agent.shim import memory_points, recorder, span_writer
from dfx_agent.shim.lifecycle import guest
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import GAUGE, KIND_MASK

GIB = 1 << 30


class StandIn(types.ModuleType):
    """``torch.cuda`` of a process that uses the second of two devices."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")
        self.has_begun = True
        self.allocated, self.reserved = 2 * GIB, 3 * GIB

    def __getattr__(self, name):
        raise AssertionError(f"nobody may touch {name}")

    def is_initialized(self):
        return self.has_begun

    def device_count(self):
        return 2

    def memory_stats_as_nested_dict(self, index):
        assert self.has_begun, "would initialise the device"
        if index == 0:
            return {"allocated_bytes": {"all": {"current": 0}}}
        return {
            "allocated_bytes": {"all": {"current": self.allocated}},
            "reserved_bytes": {"all": {"current": self.reserved}},
        }


@pytest.fixture
def cuda(monkeypatch) -> StandIn:
    for name in ("cuda", "npu", "xpu"):
        monkeypatch.delitem(sys.modules, f"torch.{name}", raising=False)
    monkeypatch.setattr(memory_points, "_recorded_at", {})
    monkeypatch.setattr(memory_points, "_in_use", set())
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "torch.cuda", stand_in)
    return stand_in


@pytest.fixture
def told(dfx_dir) -> Iterator[object]:
    """``told()``: gauges since the last call."""
    guest.stop()
    guest._is_refused = False
    span_writer.innermost.set(None)
    assert dfx.init(run="r", role="trainer", rank=0)
    with closing(SegmentReader(recorder.current.path)) as segment:
        yield lambda: {
            segment.name(r[9]): r[3] for r in segment.poll() if r[8] & KIND_MASK == GAUGE
        }
    guest.stop()


def test_the_four_points_of_a_stage_that_loads_and_offloads(cuda, told):
    with dfx.stage("actor_update"):
        with dfx.stage("onload"):
            cuda.allocated, cuda.reserved = 40 * GIB, 41 * GIB
        with dfx.stage("offload"):
            cuda.allocated, cuda.reserved = 1 * GIB, 39 * GIB
    gauges = told()
    at = {
        point: tuple(
            gauges[f"memory/at/{point}/{what}_bytes/actor_update@cuda:1"] / GIB
            for what in ("allocated", "reserved")
        )
        for points in memory_points.POINTS.values()
        for point in points
    }
    assert at == {
        "start/offload": (2, 3),
        "start/onload": (40, 41),
        "end/onload": (40, 41),
        "end/offload": (1, 39),
    }
    assert not any("cuda:0" in name for name in gauges), "nobody uses it"
    pages = Path("/proc/self/statm").read_text().split()[:2]
    virtual, resident = (int(n) * os.sysconf("SC_PAGE_SIZE") for n in pages)
    end = "memory/at/end/offload/{}_bytes/actor_update@host"
    assert gauges[end.format("resident")] == pytest.approx(resident, rel=0.2)
    assert gauges[end.format("virtual")] == pytest.approx(virtual, rel=0.2)


def test_a_stage_by_itself_goes_by_its_own_name_and_a_failed_one_has_no_end(cuda, told):
    with pytest.raises(ValueError, match="x"), dfx.stage("offload"):
        raise ValueError("x")
    points = {name.rpartition("@")[0] for name in told() if name.endswith("@cuda:1")}
    assert points == {
        "memory/at/end/onload/allocated_bytes/offload",
        "memory/at/end/onload/reserved_bytes/offload",
    }


def test_other_stages_ask_nobody_and_a_device_that_was_not_begun_is_left_alone(cuda, told):
    cuda.has_begun = False
    with dfx.stage("offload"):
        pass
    assert {name.rpartition("@")[2] for name in told()} == {"host"}
    cuda.is_initialized = None
    for made in (dfx.stage("rollout"), dfx.wait("offload"), dfx.stage(["offload"])):
        with made:
            pass
    assert told() == {}


def test_a_decorated_function_is_recorded_too(cuda, told):
    @dfx.stage("offload")
    def sleep():
        cuda.reserved = 7 * GIB

    sleep()
    assert told()["memory/at/end/offload/reserved_bytes/offload@cuda:1"] == 7 * GIB


def test_frequent_moves_of_states_are_sampled(cuda, told, monkeypatch):
    seconds = [1000.0]
    monkeypatch.setattr(memory_points.time, "monotonic", lambda: seconds[0])
    for seconds[0] in (1000.0, 1000.01, 1000.02):
        with dfx.stage("offload"):
            pass
    names = [n for n in told() if n.startswith("memory/at/end/offload/reserved")]
    assert len(names) == 1
    cuda.reserved = 5 * GIB
    seconds[0] = 1000.06
    with dfx.stage("offload"):
        pass
    assert told()["memory/at/end/offload/reserved_bytes/offload@cuda:1"] == 5 * GIB


def test_stages_without_end_do_not_fill_the_name_table(cuda, told):
    for number in range(100):
        with dfx.stage(f"mine-{number}"), dfx.stage("offload"):
            pass
    assert len({name for name in told() if "end/offload/reserved" in name}) == 32


def test_an_allocator_that_fails_costs_the_job_nothing(cuda, told):
    cuda.memory_stats_as_nested_dict = lambda _: 1 / 0
    with dfx.stage("offload"):
        pass
    with dfx.stage("rollout"):
        pass
    assert told() == {}
