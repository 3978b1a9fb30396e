"""AMD GPUs through the package amdsmi and a library with the C interface of ROCm 7.0."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("amdsmi") is None, reason="amdsmi is not installed: pip install 'dfx-agent[amd]'"
)

MIB = 1 << 20


def started(reading, *missing: str):
    found = reading("amd", *missing)
    assert found.probe()
    return found


def test_a_healthy_gpu_reports_every_figure(reading, script):
    script.say(ppt=1)
    row = started(reading).one()
    assert (row.device, row.vendor, row.place) == ("amd:0", "amd", 0)
    assert row.model == "AMD Instinct MI300X"
    assert row.uuid == "00ff74a1-0000-1000-80ff-aaaaaaaaaaaa"
    assert (row.total_bytes, row.used_bytes) == (196592 * MIB, 4096.0 * MIB)
    assert row.utilization_ratio == 0.77
    assert (row.active_ratio, row.active_source) == ({"dram": 0.31}, "amdsmi")
    assert (row.power_watts, row.power_limit_watts) == (612.0, 750.0)
    assert row.clock_hertz == {"sm": 1.9e9, "memory": 1.3e9}
    assert row.max_clock_hertz == {"sm": 2.1e9, "memory": 1.3e9}
    assert row.temperature_celsius == {"gpu": 66.0, "memory": 51.0}
    assert row.throttles == ("power cap",)
    assert row.errors_total == {"corrected": 2.0, "uncorrected": 1.0}
    assert row.link_bytes_total == {"xgmi_rx": 500e3, "xgmi_tx": 200e3}, "of XGMI links alone"
    assert [(p.pid, p.used_bytes) for p in row.processes] == [(4711, float(1 << 30))]
    assert row.problems == ()


def test_eight_gpus(reading, script):
    script.say(count=8, gfx__5=7)
    rows = started(reading).read()
    assert [row.utilization_ratio for row in rows] == [0.77] * 5 + [0.07] + [0.77] * 2


def test_what_is_not_available_is_absent(reading, script):
    script.say(gfx=0xFFFF, watts=0xFFFF, amdsmi_get_link_metrics=2)
    row = started(reading).one()
    assert (row.utilization_ratio, row.link_bytes_total, row.problems) == (None, {}, ())
    assert row.power_watts == 612.0, "of the newer field"


def test_permission_that_is_refused_says_what_to_do(reading, script):
    script.say(amdsmi_get_gpu_process_list=10)
    row = started(reading).one()
    assert row.processes == ()
    assert "add the agent's user to the groups render and video" in row.problems[0]
    assert row.utilization_ratio == 0.77


def test_counters_that_jump_back_never_go_down(reading, script):
    gpus = started(reading)
    reported = []
    for value in (100, 30, 40):
        script.say(corrected=value)
        reported.append(gpus.one().errors_total["corrected"])
    assert reported == [100, 130, 140]


def test_a_lost_gpu_is_reported_and_the_other_is_read(reading, script):
    script.say(count=2)
    gpus = started(reading)
    script.say(count=2, amdsmi_get_gpu_vram_usage__1=31)
    well, lost = gpus.read()
    assert well.problems == ()
    assert lost.problems[0].startswith("the GPU is lost (AMDSMI_STATUS_NOT_FOUND")
    script.say(count=2)
    assert gpus.read()[1].problems == ()


def test_of_a_gpu_that_uses_more_than_it_has_nothing_is_left(reading, script):
    script.say(vram_used=300_000)
    assert started(reading).one().available_bytes == 0


def test_a_library_that_is_older_than_the_package_says_what_to_do(reading):
    with pytest.raises(AssertionError, match="does not fit the library of this ROCm"):
        reading("amd", "amdsmi_get_violation_status").probe()


def test_a_driver_without_its_library_says_what_to_do(reading):
    with pytest.raises(AssertionError, match=r"libamd_smi\.so is not found; set ROCM_PATH"):
        reading("amd", has_library=False).probe()


def test_no_driver_and_no_devices_are_no_gpu(reading, script):
    assert not reading("amd", has_driver=False).probe()
    script.say(count=0)
    assert not reading("amd").probe()
