"""What the doctor says of this machine: each thing with its state and what ends a problem."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from dfx_agent.agent.config import Config
from dfx_agent.agent.device_check import KindOfDevice, check_devices
from dfx_agent.commands.doctor import attaching, devices, folder, neighbours, versions
from dfx_agent.node.devices.registry import DeviceReader
from dfx_agent.snapshot import DeviceRow, HostUse

GPU = DeviceRow("nvidia:0", vendor="nvidia", place=0, model="NVIDIA H100")


def by_subject(findings):
    return {finding.subject: finding for finding in findings}


def test_versions_are_told_and_what_is_not_installed_is_no_problem():
    found = by_subject(versions.findings())
    assert found["versions"].state == "ok"
    assert {one.state for one in found.values()} <= {"ok", "absent"}
    assert all(one.remedy.startswith("pip install") for one in found.values()
               if one.state == "absent")  # fmt: skip


def test_a_folder_that_is_not_there_yet_is_no_problem(tmp_path):
    found = by_subject(folder.findings(str(tmp_path / "later")))
    assert (found["folder"].state, found["room"].state) == ("ok", "ok")


def test_little_room_is_a_problem_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_LEAST_FREE_BYTES", 1 << 62)
    found = by_subject(folder.findings(str(tmp_path)))["room"]
    assert found.state == "problem"
    assert "--shm-size" in found.remedy


def test_a_folder_of_somebody_else_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = by_subject(folder.findings(str(tmp_path)))["folder"]
    assert (found.state, found.remedy) == ("problem", "run as that user or as root")


@pytest.mark.parametrize(("scope", "state"), [("0", "ok"), ("1", "problem"), ("3", "problem")])
def test_yama_is_told_with_what_to_do(tmp_path, monkeypatch, scope, state):
    file = tmp_path / "ptrace_scope"
    file.write_text(f"{scope}\n")
    monkeypatch.setattr(attaching, "_YAMA", str(file))
    found = by_subject(attaching.findings(None))["ptrace"]
    assert (found.state, bool(found.remedy)) == (state, state == "problem")


def test_a_pid_that_is_no_job_is_a_problem():
    with subprocess.Popen(["sleep", "60"]) as process:
        found = by_subject(attaching.findings(process.pid))["attach"]
        process.kill()
    assert found.state == "problem"
    assert "belongs to no Python job" in found.text


def test_what_is_not_here_is_absent_and_what_cannot_be_read_a_problem():
    broken = "there is a driver, and no library; install it"
    kinds = [KindOfDevice("amd", (), ""), KindOfDevice("ascend", (), broken)]
    found = by_subject(devices.findings(kinds))
    assert found["AMD"].state == "absent"
    assert (found["Ascend"].state, found["Ascend"].remedy) == ("problem", "install it")


def test_gpus_are_told_with_who_measures_their_activity():
    row = DeviceRow(
        "nvidia:1", vendor="nvidia", model="NVIDIA H100", active_ratio={"sm": 0.1},
        active_source="nvml_gpm", problems=("power: permission refused; run as root",),
    )  # fmt: skip
    found = by_subject(devices.findings([KindOfDevice("nvidia", (GPU, row), "")]))
    assert found["NVIDIA"].text == "2 × NVIDIA H100"
    assert found["NVIDIA, activity"].text == "SM activity is measured by GPM"
    assert (found["GPU 1"].state, found["GPU 1"].remedy) == ("problem", "run as root")


def test_without_sm_activity_it_says_so_and_what_would_measure_it():
    found = by_subject(devices.findings([KindOfDevice("nvidia", (GPU,), "")]))
    assert found["NVIDIA, activity"].state == "absent"
    assert "DFX_DCGM_URL" in found["NVIDIA, activity"].remedy


def test_a_right_that_is_refused_on_all_gpus_is_told_once_and_no_exporter_is_advised():
    refused = "SM activity (GPM): permission refused; run the agent as root"
    rows = tuple(
        DeviceRow(f"nvidia:{n}", vendor="nvidia", model="NVIDIA H100", problems=(refused,))
        for n in range(8)
    )
    found = by_subject(devices.findings([KindOfDevice("nvidia", rows, "")]))
    assert list(found) == ["NVIDIA", "NVIDIA, activity", "GPU 0 and 7 more"]
    assert found["GPU 0 and 7 more"].remedy == "run the agent as root"
    assert found["NVIDIA, activity"].remedy == "see below what each GPU says of GPM"


def test_of_ascend_it_is_the_ai_cores_that_are_measured():
    row = DeviceRow("ascend:0", vendor="ascend", active_ratio={"sm": 0.1}, active_source="dcmi")
    found = by_subject(devices.findings([KindOfDevice("ascend", (row,), "")]))
    assert found["Ascend, activity"].text == "AI Core activity is measured by DCMI"


def test_the_limits_of_a_container_are_told():
    row = DeviceRow("host", 64 << 30, host=HostUse(limit_bytes=8 << 30, cpu_limit=2.0))
    (found,) = devices.findings([KindOfDevice("host", (row,), "")])
    assert "the container may use 8.0 GiB, 2 processors for the container" in found.text


def test_a_kind_that_hangs_is_given_up_and_said():
    gate = threading.Event()
    reader = DeviceReader("nvidia", gate.wait)  # type: ignore[arg-type]
    (kind,) = check_devices(0.05, [reader])
    gate.set()
    assert "driver hangs; see dmesg" in kind.problem


@pytest.fixture
def prometheus():
    """Answers queries with what is in ``results``."""
    results: list[dict[str, object]] = []

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": {"result": results}}).encode())

        def log_message(self, *_: object) -> None:
            """Nothing is said."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", results
        server.shutdown()
        thread.join()


def test_a_prometheus_that_scrapes_no_agent_is_a_problem_until_it_does(prometheus, dfx_dir):
    url, results = prometheus
    config = Config(str(dfx_dir))
    found = by_subject(neighbours.findings(config, url))["Prometheus"]
    assert (found.state, "dfx-agent assets" in found.remedy) == ("problem", True)
    results.append({"value": [0, "3"]})
    found = by_subject(neighbours.findings(config, url))["Prometheus"]
    assert (found.state, found.text) == ("ok", f"{url} scrapes 3 agents")


def test_a_prometheus_that_was_named_must_be_there_and_a_usual_one_need_not(dfx_dir, monkeypatch):
    gone = "http://127.0.0.1:9"
    config = Config(str(dfx_dir))
    assert by_subject(neighbours.findings(config, gone))["Prometheus"].state == "problem"
    monkeypatch.setattr(neighbours, "DEFAULT_PROMETHEUS", gone)
    assert by_subject(neighbours.findings(config, None))["Prometheus"].state == "absent"


def test_a_configured_alertmanager_that_is_gone_is_a_problem(dfx_dir):
    config = Config(str(dfx_dir), alertmanager=("http://127.0.0.1:9",))
    assert by_subject(neighbours.findings(config, None))["Alertmanager"].state == "problem"


@pytest.mark.parametrize("more", [(), ("--prometheus", "http://127.0.0.1:9")])
def test_exit_code_and_json(dfx_dir, more):
    command = [sys.executable, "-m", "dfx_agent", "doctor", "--json", "--dir", str(dfx_dir), *more]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    states = {finding["subject"]: finding["state"] for finding in json.loads(ended.stdout)}
    problems = {subject for subject, state in states.items() if state == "problem"}
    assert ended.returncode == bool(problems), states
    assert ("Prometheus" in problems) == bool(more)
    assert {"versions", "folder", "room", "ptrace", "attach", "host", "agent"} <= set(states)
