"""NVML and GPM of the real driver: what the agent reads of a GPU that works, and of one at rest."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[demo]'")
pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install nvidia-ml-py")

from dfx_agent.node.devices.backends import nvidia  # noqa: E402 (after the visible skips)
from dfx_agent.snapshot import DeviceRow  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: run tests/gpu on a machine that has one"
)

SIZE = 8192
_WORK_SECONDS = 2.0  # GPM and utilisation are means over the last second


@pytest.fixture
def backend() -> Iterator[nvidia.Backend]:
    found = nvidia.Backend()
    assert found.probe(), "torch has a CUDA device and NVML shows none"
    yield found
    found.close()


def row_of_torch(rows: tuple[DeviceRow, ...]) -> DeviceRow:
    """The GPU that is cuda:0 here."""
    gpus = [row for row in rows if row.place is not None]
    known = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    matching = [row for row in gpus if known is not None and row.uuid == f"GPU-{known}"]
    if not matching and len(gpus) > 1:
        pytest.skip("which of several GPUs is cuda:0 is not known: this torch tells no UUID")
    return (matching or gpus)[0]


def work() -> None:
    """Products of large matrices in bfloat16, one after another."""
    left = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    right = torch.randn_like(left)
    end = time.monotonic() + _WORK_SECONDS
    while time.monotonic() < end:
        for _ in range(20):
            right = (left @ right).mul_(SIZE**-0.5)
        torch.cuda.synchronize()


def test_what_a_gpu_that_works_says_of_itself(backend, record_property):
    torch.cuda.synchronize()
    backend.read()
    work()
    row = row_of_torch(backend.read())
    record_property("device", f"{row.model}, {row.uuid}")
    for problem in row.problems:
        record_property("not told", problem)
    assert row.model == torch.cuda.get_device_name(0)
    assert row.total_bytes >= torch.cuda.get_device_properties(0).total_memory
    assert row.used_bytes >= torch.cuda.memory_reserved(0) > 0
    assert row.total_bytes >= row.used_bytes + row.available_bytes
    reported = {
        "utilisation": row.utilization_ratio, "power": row.power_watts,
        "power limit": row.power_limit_watts, "clocks": row.clock_hertz.get("sm"),
        "temperature": row.temperature_celsius.get("gpu"),
    }  # fmt: skip
    record_property("figures", reported)
    record_property("clocks held down by", row.throttles or "nothing")
    record_property("links", row.link_bytes_total or "none told")
    record_property("memory errors", row.errors_total or "none told")
    record_property("processes", [(one.pid, one.used_bytes) for one in row.processes])
    missing = [name for name, value in reported.items() if value is None]
    if missing:
        pytest.skip(f"this driver does not tell {', '.join(missing)}: {row.problems}")
    assert row.utilization_ratio > 0.5
    assert 0 < row.power_watts < 2000
    assert 1e8 < row.clock_hertz["sm"] <= row.max_clock_hertz["sm"] < 1e10
    assert 0 < row.temperature_celsius["gpu"] < 110


def test_gpm_tells_work_from_rest(backend, record_property):
    backend.read()
    work()
    busy = row_of_torch(backend.read())
    if not busy.active_ratio:
        pytest.skip(f"no GPM here: a GPU before Hopper, or {busy.problems or 'nothing is said'}")
    time.sleep(_WORK_SECONDS)  # the figure is of the time since the look before: the GPU rests
    rested = row_of_torch(backend.read())
    record_property("busy", busy.active_ratio)
    record_property("at rest", rested.active_ratio)
    assert busy.active_source == "nvml_gpm"
    assert all(0 <= ratio <= 1 for ratio in busy.active_ratio.values())
    assert busy.active_ratio["sm"] > 0.5
    assert busy.active_ratio["tensor"] > 0.2
    assert rested.active_ratio["sm"] < busy.active_ratio["sm"] / 2
    assert rested.active_ratio["tensor"] < busy.active_ratio["tensor"] / 2


def test_a_look_is_short_beside_the_second_between_looks(backend, record_property):
    backend.read()
    begin = time.perf_counter()
    for _ in range(10):
        backend.read()
    record_property("seconds of one look", f"{(time.perf_counter() - begin) / 10:.4f}")
