"""The host as a device, on the machine that runs the tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from alert_scene import AGENT

from dfx_agent.catalogue.host import STALLED
from dfx_agent.node.devices.backends import host
from dfx_agent.node.host.processor_time import stalled_ratios
from dfx_agent.snapshot import DeviceRow, HostUse
from dfx_agent.snapshot.document import Document


def test_memory_is_what_the_kernel_says():
    backend = host.Backend()
    assert backend.probe()
    (row,) = backend.read()
    backend.close()
    lines = Path("/proc/meminfo").read_text().splitlines()
    result = {
        name: int(rest.split()[0]) * 1024 for name, _, rest in (x.partition(":") for x in lines)
    }
    assert (row.device, row.total_bytes) == ("host", result["MemTotal"])
    assert 0 < row.available_bytes <= row.total_bytes


def test_a_kernel_that_says_nothing_has_no_such_device(monkeypatch):
    monkeypatch.setattr(host, "total_bytes", lambda: None)
    assert not host.Backend().probe()


def test_what_is_known_of_it_can_be_read_by_a_client(tmp_path, monkeypatch):
    """A kernel with PSI, as it may not be here."""
    (tmp_path / "cpu").write_text("some avg10=12.50 avg60=0.00 avg300=0.00 total=1\n")
    (tmp_path / "memory").write_text("full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
    stalled = stalled_ratios(str(tmp_path))
    assert stalled == {"cpu": {"some": 0.125}, "memory": {"full": 0.0}}
    monkeypatch.setattr(host, "stalled_ratios", lambda: stalled)
    (row,) = host.Backend().read()
    document = Document[DeviceRow](DeviceRow)
    read = document.read(document.dumped(row))
    assert read == row
    assert isinstance(read.host, HostUse)
    agent = replace(AGENT, devices=(read,))
    assert STALLED.value(agent) == {("cpu", "some"): 0.125, ("memory", "full"): 0.0}
