"""An agent whose device library hangs or loses a device reads and stops all the same."""

from __future__ import annotations

import os
import time

import pytest
from device_library import WatchingAgent, environment

from dfx_agent.node.host.processes import sees_host_pids
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.job_description import format_visible
from dfx_agent.wire.records import STAGE, STEP

DEADLINE_SECONDS = 120.0


@pytest.fixture
def agent(libraries, script, tmp_path):
    driver = tmp_path / "driver"
    driver.touch()
    watching = WatchingAgent(
        tmp_path / "dfx", driver, environment(libraries("nvidia"), script.path)
    )
    yield watching
    watching.close()


class StagedRank:
    """One rank of this process that is in one stage, and says so a few seconds beforehand."""

    def __init__(self, folder, rank: int, stage: str) -> None:
        identity = Identity(run="r", role="trainer", rank=rank, local_rank=rank)
        self.segment = SegmentWriter(str(folder), identity)
        self._name = self.segment.add_name(stage)
        self._end_ns, self._num_spans = time.monotonic_ns(), 0
        self.segment.emit(self._end_ns, self._end_ns, 0.0, 1, 0, 0, 0, STEP, 0)
        self.stay()

    def stay(self) -> None:
        """However long a busy machine takes to look at the device."""
        if time.monotonic_ns() > self._end_ns - 4 * 10**9:
            begin_ns, self._end_ns = self._end_ns, self._end_ns + 9 * 10**9
            self._num_spans += 1
            span = self._num_spans
            self.segment.emit(begin_ns, self._end_ns, 0.0, 1, span, 0, 1, STAGE, self._name)


def num_busy(seen, devices, ranks):
    """Ranks on these devices of which samples have been counted."""
    for rank in ranks:
        rank.stay()
    return sum(bool(r["busy"]) and r["devices"] == devices for r in seen["ranks"].values())


def until(agent, is_seen):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_seen(seen := agent.seen()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
    return seen


def test_a_call_that_hangs_holds_up_neither_the_look_nor_the_stop(agent, script):
    until(agent, lambda seen: seen["devices"] == ["host", "nvidia:0"])
    script.say(hang__nvmlDeviceGetPowerUsage=1)
    late = until(agent, lambda seen: "nvidia" in seen["faults"])
    assert "driver hangs; see dmesg" in late["faults"]["nvidia"]
    assert late["devices"] == ["host"], "what it said last is not told as of now"
    until(agent, lambda seen: seen["polls"] >= late["polls"] + 3)
    assert agent.stop()
    assert agent.close() == 0


def test_a_device_that_is_lost_is_a_fault_until_it_is_back(agent, script):
    until(agent, lambda seen: seen["devices"] == ["host", "nvidia:0"])
    script.say(nvmlDeviceGetMemoryInfo=15, nvmlDeviceGetHandleByIndex_v2=15)
    # on a busy machine a read that takes 0.1 s is a fault of its own: of "nvidia"
    lost = until(agent, lambda seen: "nvidia:0" in seen["faults"])
    assert "the GPU is lost; look for its XID in dmesg" in lost["faults"]["nvidia:0"]
    script.say()
    until(agent, lambda seen: not seen["faults"] and seen["devices"] == ["host", "nvidia:0"])


@pytest.mark.parametrize("known_by", ["list", "what it sees", "what it sets late"])
def test_two_ranks_on_one_device_get_its_figures_by_stage(agent, script, tmp_path, known_by):
    is_listed, is_reported = known_by == "list", known_by == "what it sets late"
    if is_listed and not sees_host_pids():
        pytest.skip("pids of this container are not the host's: the driver's list is not taken")
    of_pid = {"processes": 1, "pid0": os.getpid(), "process_used": 5e9} if is_listed else {}
    gpus = ["nvidia:0", "nvidia:1"] if is_reported else ["nvidia:0"]
    script.say(count=len(gpus), metric2=8, **of_pid)
    until(agent, lambda seen: seen["devices"] == ["host", *gpus])
    stages = {"0": "rollout", "1": "actor_update"}
    ranks = [StagedRank(tmp_path / "dfx", int(rank), stage) for rank, stage in stages.items()]
    for rank in ranks if is_reported else ():
        rank.segment.add_name(format_visible("CUDA_VISIBLE_DEVICES", "1"))
    try:
        seen = until(agent, lambda seen: num_busy(seen, gpus[-1:], ranks) == 2)
    finally:
        for rank in ranks:
            rank.segment.close()
    for rank, stage in stages.items():
        reported = seen["ranks"][rank]
        assert reported["devices"] == gpus[-1:]
        assert reported["bytes"] == ({"nvidia:0": 5e9} if is_listed else {})
        assert reported["busy"][stage] == pytest.approx(0.08)
