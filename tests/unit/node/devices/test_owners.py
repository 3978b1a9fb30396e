"""Which devices a process uses: by the driver's list, else by what it was started with."""

from __future__ import annotations

import pytest

from dfx_agent.node.devices.owners import VISIBLE, ProcessDevices, devices_of
from dfx_agent.snapshot import DeviceProcess, DeviceRow
from dfx_agent.wire.job_description import HIDING_VARIABLES


def gpus(number: int = 8, vendor: str = "nvidia", pids: dict[int, int] | None = None):
    """``pids``: pid -> index of the device that the driver lists it on."""
    return [
        DeviceRow(
            f"{vendor}:{n}", vendor=vendor, place=n, uuid=f"GPU-{n}abc-{n}",
            processes=tuple(DeviceProcess(pid) for pid, at in (pids or {}).items() if at == n),
        )
        for n in range(number)
    ]  # fmt: skip


PART = DeviceRow("nvidia:1/mig:0", vendor="nvidia", uuid="MIG-1f00-9")


def test_who_the_driver_lists_is_there_whatever_was_set():
    rows = gpus(pids={500: 3, 501: 3})
    sight = ProcessDevices(500, {"CUDA_VISIBLE_DEVICES": "0"}, local_rank=0)
    assert devices_of(sight, rows) == ("nvidia:3",)
    assert devices_of(ProcessDevices(501), rows) == ("nvidia:3",), "two ranks on one device"


def test_who_is_listed_nowhere_else_is_there_by_its_pid_on_the_host():
    assert devices_of(ProcessDevices(7310), gpus(pids={7310: 5})) == ("nvidia:5",)


def test_a_process_on_a_part_is_on_the_part_and_not_on_its_gpu():
    part = DeviceRow("nvidia:0/mig:1", vendor="nvidia", processes=(DeviceProcess(9),))
    rows = [*gpus(2, pids={9: 0}), part]
    assert devices_of(ProcessDevices(9), rows) == ("nvidia:0/mig:1",)


@pytest.mark.parametrize(
    ("environment", "used", "expected"),
    [
        ({}, ("cuda:2",), ("nvidia:2",)),
        ({"CUDA_VISIBLE_DEVICES": "6"}, ("cuda:0",), ("nvidia:6",)),
        ({"CUDA_VISIBLE_DEVICES": "6,4"}, ("cuda:1",), ("nvidia:4",)),
        ({"CUDA_VISIBLE_DEVICES": "6,4"}, ("cuda:0", "cuda:1"), ("nvidia:6", "nvidia:4")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5abc"}, (), ("nvidia:5",)),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1f00-9"}, (), ("nvidia:1/mig:0",)),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, (), ("nvidia:1",)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ("cuda:0",), ()),
        ({"CUDA_VISIBLE_DEVICES": "99"}, ("cuda:0",), ()),
        ({"CUDA_VISIBLE_DEVICES": "\u00b2"}, ("cuda:0",), ()),
        ({"CUDA_VISIBLE_DEVICES": "2," + 5000 * "9"}, ("cuda:0",), ("nvidia:2",)),
        ({}, ("cuda:\u00b2",), ()),
    ],
    ids=[
        "index",
        "one",
        "second",
        "both",
        "uuid",
        "part",
        "first wrong one",
        "hidden",
        "unknown",
        "no digit",
        "many digits",
        "no index",
    ],
)
def test_what_is_visible_counts_from_zero(environment, used, expected):
    assert devices_of(ProcessDevices(1, environment, used=used), [*gpus(), PART]) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("MIG-GPU-1abc-1/3/0", ("nvidia:1/mig:0",)),
        ("mig-gpu-1ABC-1/5/0", ("nvidia:1/mig:1",)),
        ("MIG-GPU-1abc-1/9/0", ()),
        ("MIG-GPU-1abc-1/3", ()),
        ("MIG-GPU-6abc-6/3/0", ()),
        ("MIG-GPU-dead/3/0", ("nvidia:2/mig:0",)),
    ],
    ids=["first", "second", "no part", "half", "other gpu", "before R470"],
)
def test_a_part_is_named_by_its_gpu_and_its_instances_too(word, expected):
    """Before R470 drivers call a part so themselves."""
    parts = [
        DeviceRow("nvidia:1/mig:0", vendor="nvidia", uuid="MIG-1f", instance="3/0"),
        DeviceRow("nvidia:1/mig:1", vendor="nvidia", uuid="MIG-2f", instance="5/0"),
        DeviceRow("nvidia:2/mig:0", vendor="nvidia", uuid="MIG-GPU-dead/3/0"),
    ]
    sight = ProcessDevices(1, {"CUDA_VISIBLE_DEVICES": word})
    assert devices_of(sight, [*gpus(), *parts]) == expected


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "5"}, ("nvidia:5",)),
        ({"CUDA_VISIBLE_DEVICES": None}, ("nvidia:0",)),
        ({}, ("nvidia:3",)),
    ],
    ids=["set late", "taken away late", "as it was started"],
)
def test_what_a_process_set_for_itself_goes_before_what_it_was_started_with(reported, expected):
    sight = ProcessDevices(1, {"CUDA_VISIBLE_DEVICES": "3"}, used=("cuda:0",), reported=reported)
    assert devices_of(sight, gpus()) == expected


def test_what_verl_renames_on_rocm_is_not_counted_twice():
    """It takes HIP_VISIBLE_DEVICES out of the environment and sets CUDA_VISIBLE_DEVICES to it."""
    reported = {"HIP_VISIBLE_DEVICES": None, "CUDA_VISIBLE_DEVICES": "6"}
    sight = ProcessDevices(1, {"HIP_VISIBLE_DEVICES": "6"}, used=("cuda:0",), reported=reported)
    assert devices_of(sight, gpus(vendor="amd")) == ("amd:6",)


def test_a_guest_reports_all_variables_that_hide_devices():
    assert set(HIDING_VARIABLES) == {name for names in VISIBLE.values() for name in names}


def test_without_an_allocator_the_local_rank_says_it():
    assert devices_of(ProcessDevices(1, local_rank=3), gpus()) == ("nvidia:3",)
    assert devices_of(ProcessDevices(1), gpus()) == (), "nothing is guessed"


def test_a_container_was_given_some_of_the_machines_devices():
    given = {"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "1"}
    inside = ProcessDevices(1, given, is_inside=True, used=("cuda:0",))
    assert devices_of(inside, gpus()) == ("nvidia:3",)
    beside = ProcessDevices(1, given, is_inside=False, used=("cuda:0",))
    assert devices_of(beside, gpus()) == ("nvidia:1",), "an agent inside counts as it does"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2"}, ("amd:6",)),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "2"}, ("amd:2",)),
        ({"CUDA_VISIBLE_DEVICES": "7"}, ("amd:7",)),
    ],
)
def test_rocm_counts_what_the_runtime_below_it_left(environment, expected):
    assert (
        devices_of(ProcessDevices(1, environment, used=("cuda:0",)), gpus(vendor="amd")) == expected
    )


def test_a_container_may_be_given_a_part_by_two_numbers():
    sight = ProcessDevices(1, {"NVIDIA_VISIBLE_DEVICES": "1:0"}, is_inside=True, used=("cuda:0",))
    assert devices_of(sight, [*gpus(), PART]) == (PART.device,)
    unknown = ProcessDevices(1, {"NVIDIA_VISIBLE_DEVICES": "1:4"}, is_inside=True, used=("cuda:0",))
    assert devices_of(unknown, [*gpus(), PART]) == ()


def test_ascend_takes_ranges_in_what_a_container_is_given():
    given = {"ASCEND_VISIBLE_DEVICES": "2-4,7", "ASCEND_RT_VISIBLE_DEVICES": "3"}
    sight = ProcessDevices(1, given, is_inside=True, used=("npu:0",))
    assert devices_of(sight, gpus(vendor="ascend")) == ("ascend:7",)
