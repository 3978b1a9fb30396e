"""The host as a device, on the machine that runs the tests."""

from __future__ import annotations

from pathlib import Path

from dfx_agent.devices.backends import host


def test_memory_is_what_the_kernel_says():
    backend = host.Backend()
    assert backend.probe()
    (row,) = backend.read()
    backend.close()
    lines = Path("/proc/meminfo").read_text().splitlines()
    said = {
        name: int(rest.split()[0]) * 1024 for name, _, rest in (x.partition(":") for x in lines)
    }
    assert (row.device, row.total_bytes) == ("host", said["MemTotal"])
    assert 0 < row.available_bytes <= row.total_bytes


def test_a_kernel_that_says_nothing_has_no_such_device(monkeypatch):
    monkeypatch.setattr(host, "total_bytes", lambda: None)
    assert not host.Backend().probe()
