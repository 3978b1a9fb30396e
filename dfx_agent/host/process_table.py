"""Every process of this machine as a row, and what one of them was started with: proc(5)."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from dfx_agent.host.stat import GROUP, PARENT, START_TICKS, stat_fields

_MAX_COMMAND_BYTES = 64 * 1024
_MAX_ENVIRONMENT_BYTES = 256 * 1024


class ProcessEntry(NamedTuple):
    """``start_ticks`` tells two processes with one pid apart."""

    pid: int
    parent: int
    group: int
    start_ticks: int


def process_table() -> dict[int, ProcessEntry]:
    """By pid; what ends meanwhile is left out."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = stat_fields(f"/proc/{name}/stat")
            if len(fields) > START_TICKS:
                pid = int(name)
                numbers = (int(fields[i]) for i in (PARENT, GROUP, START_TICKS))
                found[pid] = ProcessEntry(pid, *numbers)
    return found


def command_line(pid: int) -> tuple[str, ...]:
    """Empty for a thread of the kernel, a stranger's process, and one that is gone."""
    text = _read(f"/proc/{pid}/cmdline", _MAX_COMMAND_BYTES).rstrip(b"\0")
    return tuple(part.decode("utf-8", "replace") for part in text.split(b"\0")) if text else ()


def environment_value(pid: int, name: str) -> str:
    """As the process was started with it; "" where it was not, or may not be read."""
    head = name.encode() + b"="
    for entry in _read(f"/proc/{pid}/environ", _MAX_ENVIRONMENT_BYTES).split(b"\0"):
        if entry.startswith(head):
            return entry[len(head) :].decode("utf-8", "replace")
    return ""


def environment_values(pid: int, names: Collection[str]) -> dict[str, str]:
    """The same of several; only those that were set."""
    entries = _read(f"/proc/{pid}/environ", _MAX_ENVIRONMENT_BYTES).split(b"\0")
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in entries)
    return {name: value for name, sign, value in pairs if sign and name in names}


def has_mapped(pid: int, parts_of_path: tuple[bytes, ...]) -> bool:
    """Whether it has loaded a file whose path holds one of these."""
    with suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        return any(part in line for line in file for part in parts_of_path)
    return False


def _read(path: str, max_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes)
    except OSError:
        return b""
