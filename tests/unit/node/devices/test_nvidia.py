"""NVIDIA GPUs through a library with the C interface of NVML, which does as a script says."""

from __future__ import annotations

import http.server
import threading

import pytest

GIB = 1 << 30
MHZ = 1e6


def started(reading, *missing: str, **more):
    found = reading("nvidia", *missing, **more)
    assert found.probe()
    return found


def test_a_healthy_gpu_reports_every_figure(reading, script):
    script.say(
        reasons=0x04 | 0x08, corrected=3, uncorrected=1, field__138=5, field__198=9, processes=2,
        process_used=GIB, metric5=40, metric10=-1,
    )  # fmt: skip
    gpus = started(reading)
    first, row = gpus.one(), gpus.one()
    assert (row.device, row.vendor, row.place) == ("nvidia:0", "nvidia", 0)
    assert (row.model, row.uuid) == ("NVIDIA H100 80GB HBM3", "GPU-00000000-aaaa")
    assert (row.total_bytes, row.used_bytes) == (80 * GIB, 3e9)
    assert row.available_bytes == 80 * GIB - 3_000_000_000
    assert row.utilization_ratio == 0.9
    assert (row.power_watts, row.power_limit_watts) == (650.5, 700.0)
    assert row.clock_hertz == {"sm": 1755 * MHZ, "memory": 2619 * MHZ}
    assert row.max_clock_hertz == {"sm": 1980 * MHZ, "memory": 2619 * MHZ}
    assert row.temperature_celsius == {"gpu": 61.0}
    assert row.throttles == ("power cap",), "the general reason beside it says nothing"
    assert row.errors_total == {"corrected": 3.0, "uncorrected": 1.0}
    assert row.link_bytes_total == {"nvlink_tx": 5 * 1024.0, "pcie_rx": 9.0}
    assert [(p.pid, p.used_bytes) for p in row.processes] == [(4711, GIB), (4712, GIB)]
    assert first.active_ratio == {}, "activity is between two samples"
    assert row.active_ratio == {"sm": 0.25, "sm_occupancy": 0.25, "tensor": 0.4}
    assert row.active_source == "nvml_gpm"
    assert row.problems == ()


def test_memory_of_a_process_unknown_to_the_driver_is_absent(reading, script):
    script.say(processes=1)
    assert started(reading).one().processes[0].used_bytes is None


def test_eight_gpus(reading, script):
    script.say(count=8, utilization__5=7)
    rows = started(reading).read()
    assert [row.device for row in rows] == [f"nvidia:{n}" for n in range(8)]
    assert [row.utilization_ratio for row in rows] == [0.9] * 5 + [0.07] + [0.9] * 2


def test_parts_of_a_gpu_have_memory_processes_and_activity_of_their_own(reading, script):
    script.say(mig=2, part_processes=1, process_used=GIB)
    gpus = started(reading)
    gpus.read()
    gpu, first, second = gpus.read()
    assert (first.device, second.device) == ("nvidia:0/mig:0", "nvidia:0/mig:1")
    assert (first.uuid, first.total_bytes) == ("MIG-00000000-bbbb", 10 * GIB)
    assert (gpu.instance, first.instance, second.instance) == ("", "7/0", "8/0")
    assert first.processes[0].used_bytes == GIB
    assert gpu.processes == ()
    assert second.active_ratio["sm"] == 0.25
    assert first.utilization_ratio is None, "there is no such figure of a part"


def test_a_gpu_before_hopper_has_utilisation_under_its_own_name_alone(reading, script):
    script.say(gpm=0)
    gpus = started(reading, DFX_DCGM_URL="")
    gpus.read()
    row = gpus.one()
    assert (row.utilization_ratio, row.active_ratio, row.active_source) == (0.9, {}, "")
    assert row.problems == ()


@pytest.fixture
def exporter():
    """A dcgm-exporter: what it says, at a port of its own."""
    page = (
        "# TYPE DCGM_FI_PROF_SM_ACTIVE gauge\n"
        'DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-00000000-aaaa",pod="a b"} 0.625\n'
        'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-00000000-aaaa"} nan\n'
        'DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-00000000-aaaa",GPU_I_ID="3"} 0.1\n'
    )

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Nothing is said."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        thread.join()


def test_below_hopper_a_dcgm_exporter_that_runs_is_read(reading, script, exporter):
    script.say(gpm=0)
    gpus = started(reading, DFX_DCGM_URL=exporter)
    gpus.read()
    row = gpus.one()
    assert (row.active_ratio, row.active_source) == ({"sm": 0.625}, "dcgm")


def test_a_configured_exporter_that_is_absent_is_reported(reading, script):
    script.say(gpm=0)
    gpus = started(reading, DFX_DCGM_URL="http://127.0.0.1:9")
    gpus.read()
    assert any("DFX_DCGM_URL does not answer" in problem for problem in gpus.one().problems)


def test_gpm_without_rights_costs_its_figures_and_says_what_to_do(reading, script):
    script.say(nvmlGpmSampleGet=4)
    row = started(reading).one()
    (problem,) = row.problems
    assert problem.startswith("SM activity (GPM): permission refused; run the agent as root")
    assert (row.active_ratio, row.utilization_ratio) == ({}, 0.9)


@pytest.mark.parametrize(
    ("missing", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilization_ratio"),
        ("nvmlDeviceGetPowerUsage", "power_watts"),
        ("nvmlDeviceGetMemoryInfo", "used_bytes"),
    ],
)
def test_a_function_that_the_driver_lacks_costs_its_figure(reading, missing, field):
    row = started(reading, missing).one()
    assert getattr(row, field) is None
    assert row.problems == ()
    assert row.uuid, "the others are told"


def test_a_driver_before_510_lists_its_processes_by_an_older_name(reading, script):
    script.say(processes=1, process_used=GIB)
    row = started(reading, "nvmlDeviceGetComputeRunningProcesses_v3").one()
    assert ([p.used_bytes for p in row.processes], row.problems) == ([GIB], ())


def test_an_older_driver_has_neither_gpm_nor_the_newer_name_of_clock_reasons(reading, script):
    script.say(reasons=0x40)
    gpus = started(
        reading, "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetCurrentClocksEventReasons",
        DFX_DCGM_URL="",
    )  # fmt: skip
    row = gpus.one()
    assert (row.throttles, row.active_ratio, row.problems) == (("hardware thermal",), {}, ())


def test_an_error_of_one_figure_is_reported_and_loses_only_it(reading, script):
    script.say(nvmlDeviceGetPowerUsage=2)
    row = started(reading).one()
    assert row.power_watts is None
    assert [problem.partition(":")[0] for problem in row.problems] == ["power"]
    assert row.utilization_ratio == 0.9


def test_a_gpu_that_is_lost_says_so_and_its_xid_and_comes_back(reading, script):
    script.say(count=2, uncorrected=7)
    gpus = started(reading)
    gpus.read()
    script.say(count=2, nvmlDeviceGetMemoryInfo__1=15, nvmlDeviceGetHandleByIndex_v2__1=15,
               xids=1, xid0=79, xid0__device=1)  # fmt: skip
    well, lost = gpus.read()
    assert well.problems == ()
    assert lost.problems[0].startswith("the GPU is lost; look for its XID in dmesg")
    assert (lost.used_bytes, lost.utilization_ratio) == (None, None)
    assert (lost.model, lost.uuid) == (well.model, "GPU-00010000-aaaa"), "which it was"
    assert [(e.name, e.meaning) for e in lost.events] == [("XID 79", "GPU has fallen off the bus")]
    assert lost.num_events == {"XID 79": 1}
    assert gpus.read()[1].problems, "while it is not there"
    script.say(count=2, uncorrected=1)
    back = gpus.read()[1]
    assert (back.problems, back.used_bytes) == ((), 3e9)
    assert back.num_events == {"XID 79": 1}
    assert back.errors_total["uncorrected"] == 8.0, "a counter that jumps back goes on"


def test_an_unreadable_response_is_reported_and_loses_only_it(reading, script):
    script.say(count=2, bad_name__1=1)
    well, row = started(reading).read()
    assert (well.problems, row.model, row.utilization_ratio) == ((), "", 0.9)
    assert row.problems[0].startswith("name: cannot be read (UnicodeDecodeError")


def test_figures_that_cannot_be_are_bounded(reading, script):
    script.say(utilization=101, metric2=100.6, used=90 * GIB)
    gpus = started(reading)
    gpus.read()
    row = gpus.one()
    assert (row.utilization_ratio, row.active_ratio["sm"]) == (1.0, 1.0)
    assert row.available_bytes == 0, "no huge number"


def test_the_xid_of_a_gpu_without_an_index_is_its_own(reading, script):
    script.say(count=2)
    gpus = started(reading)
    script.say(count=2, xids=1, xid0=79, xid0__device=1, nvmlDeviceGetIndex__1=15,
               nvmlDeviceGetMemoryInfo__1=15)  # fmt: skip
    assert gpus.read()[1].num_events == {"XID 79": 1}


def test_xids_are_received_again_after_a_failed_wait(reading, script):
    script.say(count=2)
    gpus = started(reading)
    script.say(count=2, nvmlEventSetWait_v2=15)
    gpus.read()
    script.say(count=2, xids=1, xid0=31, xid0__device=1)
    assert gpus.read()[1].num_events == {"XID 31": 1}


@pytest.mark.parametrize("lost_at", ["MigMode", "MaxMigDeviceCount", "ComputeInstanceId"])
def test_a_gpu_lost_while_it_is_read_is_reported_once(reading, script, lost_at):
    script.say(count=2, mig__0=1)
    gpus = started(reading)
    script.say(count=2, mig__0=1, **{f"nvmlDeviceGet{lost_at}__0": 15})
    assert [row.device for row in gpus.read()] == ["nvidia:0", "nvidia:1"]


def test_counters_that_jump_back_never_go_down(reading, script):
    gpus = started(reading)
    reported = []
    for value in (100, 250, 30, 40):
        script.say(field__197=value)
        reported.append(gpus.one().link_bytes_total["pcie_tx"])
    assert reported == [100, 250, 280, 290]


def test_a_gpu_that_is_plugged_in_later_is_seen(reading, script):
    gpus = started(reading)
    assert len(gpus.read()) == 1
    script.say(count=2)
    assert len(gpus.read()) == 2


def test_no_library_and_no_driver_is_no_gpu(reading):
    assert not reading("nvidia", has_library=False, has_driver=False).probe()


def test_a_library_without_devices_is_no_gpu(reading, script):
    script.say(count=0)
    assert not reading("nvidia").probe()


def test_a_driver_without_its_library_says_what_to_do(reading):
    with pytest.raises(AssertionError, match=r"libnvidia-ml\.so\.1 was not found; in a container"):
        reading("nvidia", has_library=False).probe()


def test_a_library_that_does_not_fit_its_driver_says_what_to_do(reading, script):
    script.say(nvmlInitWithFlags=18)
    with pytest.raises(AssertionError, match="different versions; reload the driver"):
        reading("nvidia").probe()


def test_a_driver_without_the_package_says_what_to_install(reading, tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ImportError")
    with pytest.raises(AssertionError, match="pip install nvidia-ml-py"):
        reading("nvidia", PYTHONPATH=str(tmp_path)).probe()
