"""Ascend NPUs through the table of ``npu-smi info``: only where libdcmi cannot be used.

The program takes seconds and locks in the driver, so it runs every half minute at most.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterable

from dfx_agent.node.devices.protocol import DeviceError
from dfx_agent.snapshot import DeviceProcess, DeviceRow

SOURCE = "npu_smi"
READ_EVERY_SECONDS = 30.0
_TIMEOUT_SECONDS = 10.0
_VENDOR, _MIB = "ascend", float(1 << 20)
# | NPU Name | Health | Power(W) Temp(C) Hugepages |, then for the same chip
# | Chip [Phy-ID] | Bus-Id | AICore(%) Memory-Usage(MB) HBM-Usage(MB) |
_FIRST = re.compile(r"\|\s*(\d+)\s+(\S+)\s*\|\s*(\S+)\s*\|\s*(\S+)\s+(\S+)\s+\d+\s*/\s*\d+\s*\|")
_SECOND = re.compile(
    r"\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*\S+:\S+\s*\|\s*(\S+)\s+\d+\s*/\s*\d+\s+(\d+)\s*/\s*(\d+)\s*\|"
)
# | NPU Chip | Process id | Process name | Process memory(MB) |
_PROCESS = re.compile(r"\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|[^|]*\|\s*(\d+)\s*\|")


def is_installed() -> bool:
    """Whether the program is there."""
    return shutil.which("npu-smi") is not None


class NpuSmi:
    """All NPUs that the program lists. Between two runs of it, the rows stay the same."""

    def __init__(self) -> None:
        self._rows: tuple[DeviceRow, ...] = ()
        self._run_at = -READ_EVERY_SECONDS

    def read(self) -> tuple[DeviceRow, ...]:
        """Raises DeviceError if the program fails or prints another table."""
        if time.monotonic() - self._run_at >= READ_EVERY_SECONDS:
            self._rows = parse(_output().splitlines())
            self._run_at = time.monotonic()
        return self._rows


def parse(lines: Iterable[str]) -> tuple[DeviceRow, ...]:
    """The rows of the table; DeviceError if there are none.

    A training NPU without a Phy-ID has one chip, and its own number is that in /dev/davinciN.
    """
    chips: dict[tuple[str, str], tuple[re.Match[str], re.Match[str]]] = {}
    processes: dict[tuple[str, str], list[DeviceProcess]] = {}
    first: re.Match[str] | None = None
    for line in lines:
        second = _SECOND.match(line)
        if second is not None and first is not None:
            chips[first[1], second[1]] = first, second
        elif (found := _PROCESS.match(line)) is not None:
            used_bytes = int(found[4]) * _MIB
            processes.setdefault((found[1], found[2]), []).append(
                DeviceProcess(int(found[3]), used_bytes)
            )
        first = _FIRST.match(line)
    if not chips:
        raise DeviceError("`npu-smi info` printed no table of NPUs that dfx-agent can read")
    return tuple(
        _row(int(second[2] or first[1]), first, second, processes.get(key, ()))
        for key, (first, second) in chips.items()
    )


def _row(
    place: int, first: re.Match[str], second: re.Match[str], processes: Iterable[DeviceProcess]
) -> DeviceRow:
    used, total, busy = int(second[4]) * _MIB, int(int(second[5]) * _MIB), _number(second[3])
    celsius, name = _number(first[5]), first[2]
    return DeviceRow(
        f"{_VENDOR}:{place}",
        total_bytes=total,
        available_bytes=int(max(0, total - used)),
        used_bytes=used,
        vendor=_VENDOR,
        model=name if name.startswith("Ascend") else f"Ascend {name}",
        place=place,
        active_ratio={} if busy is None else {"sm": busy / 100},
        active_source="" if busy is None else SOURCE,
        power_watts=_number(first[4]),
        temperature_celsius={} if celsius is None else {"gpu": celsius},
        health=first[3].lower(),
        processes=tuple(processes),
    )


def _number(text: str) -> float | None:
    """None for "-" and "NA": a card whose power another chip shows."""
    try:
        return float(text)
    except ValueError:
        return None


def _output() -> str:
    command = ["npu-smi", "info"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(f"`npu-smi info` failed ({error}); run it by hand") from None
    return done.stdout
