"""Ascend NPUs through a library with the C interface of DCMI, which does as a script says."""

from __future__ import annotations

import pytest

MIB = 1 << 20
AI_CORE, HBM_BANDWIDTH, VECTOR, NPU, CUBE = "rate2", "rate10", "rate12", "rate13", "rate14"


def started(reading, *missing: str):
    found = reading("ascend", *missing)
    assert found.probe()
    return found


def test_a_healthy_npu_reports_every_figure(reading, script):
    script.say(**{AI_CORE: 62, HBM_BANDWIDTH: 10, VECTOR: 0, NPU: 70, CUBE: 55})
    row, other = started(reading).read()
    assert (row.device, other.device) == ("ascend:0", "ascend:1")
    assert (row.vendor, row.place, row.model) == ("ascend", 0, "Ascend 910B1")
    assert (row.total_bytes, row.used_bytes) == (65536 * MIB, 30000.0 * MIB)
    assert row.active_ratio == {"sm": 0.62, "vector": 0.0, "tensor": 0.55, "dram": 0.1}
    assert (row.active_source, row.utilization_ratio) == ("dcmi", 0.7)
    assert row.power_watts == 162.4
    assert row.temperature_celsius == {"gpu": 44.0, "memory": 47.0}
    assert row.clock_hertz == {"sm": 1.8e9, "memory": 1.6e9}
    assert row.max_clock_hertz == {"sm": 1.85e9}
    assert row.errors_total == {"corrected": 3.0, "uncorrected": 1.0}
    assert row.health == "ok"
    assert [(p.pid, p.used_bytes) for p in row.processes] == [(4711, float(1 << 30))]
    assert row.problems == ()


def test_zero_while_a_profiler_runs_is_unknown(reading, script):
    script.say(**{AI_CORE: 0, VECTOR: 0, CUBE: 0, NPU: 70, HBM_BANDWIDTH: 30})
    assert started(reading).read()[0].active_ratio == {"dram": 0.3}


def test_zero_of_an_npu_that_does_nothing_is_zero(reading, script):
    script.say(**{AI_CORE: 0, VECTOR: 0, CUBE: 0, NPU: 0, HBM_BANDWIDTH: 0})
    row = started(reading).read()[0]
    assert row.active_ratio == {"sm": 0.0, "vector": 0.0, "tensor": 0.0, "dram": 0.0}


def test_eight_npus_on_four_cards(reading, script):
    script.say(cards=4)
    assert [row.device for row in started(reading).read()] == [f"ascend:{n}" for n in range(8)]


def test_an_alarm_is_an_event_when_it_comes(reading, script):
    npus = started(reading)
    assert npus.read()[0].events == ()
    script.say(health=3)
    row, _ = npus.read()
    assert row.health == "critical alarm"
    npus.read()
    row, _ = npus.read()
    assert [event.name for event in row.events] == ["critical alarm"]
    assert row.num_events == {"critical alarm": 1}


@pytest.mark.parametrize(
    ("code", "words"),
    [(-8002, "run the agent as root or in the group"), (-8013, "run the agent on the host")],
)
def test_what_is_refused_says_what_to_do(reading, script, code, words):
    script.say(dcmi_get_device_power_info=code)
    row, _ = started(reading).read()
    assert row.power_watts is None
    assert words in row.problems[0]
    assert row.used_bytes is not None, "the others are told"


def test_what_a_chip_has_not_got_is_absent_and_no_problem(reading, script):
    script.say(dcmi_get_device_hbm_info=-8255, rate14=-8255)
    row, _ = started(reading).read()
    assert (row.used_bytes, row.problems) == (None, ())
    assert "tensor" not in row.active_ratio


def test_a_function_that_the_driver_lacks_costs_its_figure(reading):
    row, _ = started(reading, "dcmi_get_device_resource_info").read()
    assert (row.processes, row.problems) == ((), ())


def test_an_older_driver_lists_its_cards_by_another_name(reading):
    with pytest.raises(AssertionError, match="libdcmi does not start"):
        reading("ascend", "dcmi_get_card_list").probe()


def test_a_lost_npu_is_reported_and_the_other_is_read(reading, script):
    npus = started(reading)
    script.say(dcmi_get_device_hbm_info__1=-8008)
    well, lost = npus.read()
    assert well.problems == ()
    assert lost.problems[0].startswith("the NPU is lost (dcmi_get_device_hbm_info returned -8008)")
    script.say()
    assert npus.read()[1].problems == ()


@pytest.mark.parametrize(
    ("function", "place", "num_well"),
    [
        ("dcmi_get_device_num_in_card__4", "card 4", 6),
        ("dcmi_get_device_logic_id__3", "card 4 chip 1", 7),
    ],
)
def test_an_npu_that_is_lost_when_the_agent_comes_costs_itself(
    reading, script, function, place, num_well
):
    script.say(cards=4, **{function: -8012})
    npus = started(reading)
    *well, lost = npus.read()
    assert (len(well), lost.device) == (num_well, f"ascend:{place}")
    assert lost.problems[0].startswith("the NPU is lost (")
    script.say(cards=4)
    assert [row.device for row in npus.read()] == [f"ascend:{n}" for n in range(8)]


def test_a_driver_without_its_library_says_what_to_do(reading):
    with pytest.raises(AssertionError, match="in a container mount /usr/local/dcmi"):
        reading("ascend", has_library=False).probe()


def test_neither_driver_nor_devices_is_no_npu(reading, script):
    assert not reading("ascend", has_library=False, has_driver=False).probe()
    script.say(cards=0)
    assert not reading("ascend").probe()
