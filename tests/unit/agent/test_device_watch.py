"""Which ranks used a device when it reported something."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from dfx_agent.agent.device_watch import DeviceWatch
from dfx_agent.node.device_stages import DeviceStages
from dfx_agent.node.devices.registry import DeviceReading
from dfx_agent.snapshot import DeviceEvent, DeviceRow
from dfx_agent.snapshot.faults import Faults

GPU = "nvidia:3"
MINUTE_NS = 60 * 10**9


class LostGpu:
    """A reader of one GPU that has reported an XID."""

    name, num_results = "nvidia", 1

    def latest_reading(self) -> DeviceReading:
        event = DeviceEvent(GPU, "XID 79", time.time())
        return DeviceReading((DeviceRow(GPU, vendor="nvidia", events=(event,)),), 0, 1)


def gone(ago_ns: int) -> Any:
    """A process that used the GPU and has ended so long ago."""
    devices = DeviceStages()
    devices.use((GPU,), {})
    last_alive_ns = time.monotonic_ns() - ago_ns
    return SimpleNamespace(is_living=False, last_alive_ns=last_alive_ns, devices=devices)


@pytest.mark.parametrize(
    ("ago_ns", "ranks"), [(10**9, (("trainer", "0"),)), (2 * MINUTE_NS, ())], ids=["now", "before"]
)
def test_a_rank_that_ended_before_its_gpu_was_read_is_one_of_its_users(
    ago_ns: int, ranks: tuple[tuple[str, str], ...]
) -> None:
    fold: Any = SimpleNamespace(processes={("trainer", "0"): gone(ago_ns)}, reported=())
    reader: Any = LostGpu()
    DeviceWatch([reader], Faults()).look(1.0, [fold])
    assert [(event.name, event.ranks) for event in fold.reported] == [("XID 79", ranks)]
