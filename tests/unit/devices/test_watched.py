"""An agent whose device library hangs or loses a device reads and stops all the same."""

from __future__ import annotations

import time

import pytest
from device_library import WatchingAgent, environment

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
    assert "its driver hangs; look into dmesg" in late["faults"]["nvidia"]
    assert late["devices"] == ["host"], "what it said last is not told as of now"
    until(agent, lambda seen: seen["polls"] >= late["polls"] + 3)
    assert agent.stop()
    assert agent.close() == 0


def test_a_device_that_is_lost_is_a_fault_until_it_is_back(agent, script):
    until(agent, lambda seen: seen["devices"] == ["host", "nvidia:0"])
    script.say(nvmlDeviceGetMemoryInfo=15, nvmlDeviceGetHandleByIndex_v2=15)
    lost = until(agent, lambda seen: seen["faults"])
    assert "the GPU is lost; look for its XID in dmesg" in lost["faults"]["nvidia:0"]
    script.say()
    back = until(agent, lambda seen: not seen["faults"])
    assert back["devices"] == ["host", "nvidia:0"]
