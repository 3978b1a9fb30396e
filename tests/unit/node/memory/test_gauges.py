"""Gauges of the guest as device rows."""

from dfx_agent.node.memory import device_rows, held_rows
from dfx_agent.snapshot import DeviceMemory, HeldMemory


def test_fields_and_stage_peaks_differ():
    rows = device_rows(
        {
            "memory/allocated_bytes@cuda:0": 3.0,
            "memory/num_ooms@cuda:0": 0.0,
            "memory/stage_peak_bytes/rollout@cuda:0": 9.0,
            "memory/stage_peak_bytes/my/own@stage@cuda:0": 8.0,
            "patch/collectives": 1.0,
            "guest/overhead_ratio": 0.1,
            "memory/of_another_day@cuda:0": 1.0,
            "memory/allocated_bytes": 1.0,
        }
    )
    peaks = {"rollout": 9.0, "my/own@stage": 8.0}
    assert rows == (
        DeviceMemory("cuda:0", allocated_bytes=3.0, num_ooms=0.0, stage_peak_bytes=peaks),
    )


def test_devices_are_in_the_order_of_their_numbers():
    names = [f"memory/reserved_bytes@cuda:{index}" for index in (10, 2, 0)]
    rows = device_rows(dict.fromkeys([*names, "memory/reserved_bytes@npu"], 1.0))
    assert [row.device for row in rows] == ["npu", "cuda:0", "cuda:2", "cuda:10"]


def test_no_gauge_no_device():
    assert device_rows({"patch/backward": 1.0}) == ()


def test_stages_have_their_own_figures():
    (row,) = device_rows(
        {
            "memory/active_bytes@cuda:0": 5.0,
            "memory/inactive_split_bytes@cuda:0": 2.0,
            "memory/largest_free_bytes@cuda:0": 1.5,
            "memory/stage/allocated_bytes/old/logprob@cuda:0": 3.0,
            "memory/stage/reserved_bytes/rollout@cuda:0": 4.0,
            "memory/stage/num_alloc_retries/rollout@cuda:0": 2.0,
            "memory/stage/num_ooms/old/logprob@cuda:0": 1.0,
        }
    )
    assert (row.active_bytes, row.inactive_split_bytes, row.largest_free_bytes) == (5.0, 2.0, 1.5)
    assert row.stage_allocated_bytes == {"old/logprob": 3.0}
    assert row.stage_reserved_bytes == {"rollout": 4.0}
    assert row.stage_num_alloc_retries == {"rollout": 2.0}
    assert row.stage_num_ooms == {"old/logprob": 1.0}


def test_what_was_held_at_a_point_is_a_row_by_stage_and_device():
    gauges = {
        "memory/at/end/offload/allocated_bytes/old/logprob@cuda:0": 3.0,
        "memory/at/end/offload/reserved_bytes/old/logprob@cuda:0": 4.0,
        "memory/at/end/offload/resident_bytes/old/logprob@host": 5.0,
        "memory/at/end/offload/of_another_day/old/logprob@host": 9.0,
        "memory/at/end": 1.0,
    }
    assert held_rows(gauges) == (
        HeldMemory("old/logprob", "end/offload", "cuda:0", 3.0, 4.0),
        HeldMemory("old/logprob", "end/offload", "host", resident_bytes=5.0),
    )
    assert device_rows({name: 1.0 for name in gauges if name.endswith("host")}) == ()
