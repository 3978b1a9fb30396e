"""The table of npu-smi, as two generations of drivers print it."""

from __future__ import annotations

import os

import pytest

from dfx_agent.node.devices import npu_smi
from dfx_agent.node.devices.protocol import DeviceError

MIB = 1 << 20
LINE = "+===========================+===============+====================================+"
A2 = f"""
| npu-smi 23.0.rc2                 Version: 23.0.rc2                                     |
| NPU   Name                | Health        | Power(W)    Temp(C)   Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)|
{LINE}
| 2     910B3               | OK            | 91.0        36                0    / 0     |
| 0                         | 0000:41:00.0  | 62          0    / 0          3401 / 65536 |
{LINE}
| 7     910B3               | Alarm         | 95.4        37                0    / 0     |
| 0                         | 0000:42:00.0  | 0           0    / 0          3400 / 65536 |
{LINE}
| NPU     Chip              | Process id    | Process name     | Process memory(MB)      |
{LINE}
| 2       0                 | 1333928       |                  | 37709                   |
| No running processes found in NPU 7                                                    |
"""
# two dies on one card: only the first shows the power of both
A3 = f"""
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)|
{LINE}
| 3     Ascend910           | OK            | 177.2       37                0    / 0     |
| 0     6                   | 0000:9D:00.0  | 5           0    / 0          2877 / 65536 |
| 3     Ascend910           | OK            | -           38                0    / 0     |
| 1     7                   | 0000:9F:00.0  | 0           0    / 0          2882 / 65536 |
{LINE}
| 3       1                 | 42            | python           | 50119                   |
"""


def test_chips_of_a_card_each():
    well, ill = npu_smi.parse(A2.splitlines())
    assert (well.device, well.place, well.model) == ("ascend:2", 2, "Ascend 910B3")
    assert (well.used_bytes, well.total_bytes) == (3401 * MIB, 65536 * MIB)
    assert (well.active_ratio, well.active_source) == ({"sm": 0.62}, "npu_smi")
    assert (well.power_watts, well.temperature_celsius) == (91.0, {"gpu": 36.0})
    assert [(p.pid, p.used_bytes) for p in well.processes] == [(1333928, 37709.0 * MIB)]
    assert (well.health, ill.health, ill.processes) == ("ok", "alarm", ())


def test_two_dies_of_a_card():
    first, second = npu_smi.parse(A3.splitlines())
    assert (first.device, second.device) == ("ascend:6", "ascend:7")
    assert (first.model, second.power_watts) == ("Ascend910", None)
    assert (first.processes, [p.pid for p in second.processes]) == ((), [42])


def test_another_table_is_an_error_and_no_empty_machine():
    with pytest.raises(DeviceError, match="no table"):
        npu_smi.parse(["dcmi module initialize failed. ret is -8005"])


def install(folder, runs):
    (folder / "table").write_text(A2)
    program = folder / "npu-smi"
    program.write_text(f'#!/bin/sh\necho "$1" >> {runs}\ncat {folder}/table\n')
    program.chmod(0o755)
    return program


def test_it_is_used_where_the_driver_has_no_library(reading, tmp_path):
    install(tmp_path, tmp_path / "runs")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    npus = reading("ascend", has_library=False, PATH=path)
    assert npus.probe()
    assert [row.device for row in npus.read()] == ["ascend:2", "ascend:7"]
    assert not reading("ascend", has_library=False, has_driver=False, PATH=path).probe()


def test_the_program_runs_once_in_half_a_minute(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    program = install(tmp_path, runs)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert npu_smi.is_installed()
    reader = npu_smi.NpuSmi()
    assert reader.read() is reader.read()
    assert runs.read_text() == "info\n"
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(DeviceError, match="run it by hand"):
        npu_smi.NpuSmi().read()
