"""Processes of this machine: table, arguments, environment and namespaces, by proc(5)."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

# indices behind the name
STATE, PARENT, GROUP, MINOR_FAULTS, USER_TICKS, SYSTEM_TICKS = 0, 1, 2, 7, 11, 12
START_TICKS, EXIT_STATUS = 19, 49
# the number of the first pid namespace of every kernel: linux/proc_ns.h, PROC_PID_INIT_INO
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
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


def sees_host_pids() -> bool:
    """Whether a pid here is the host's: not in a container with pids of its own."""
    return _number("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE


def is_in_container(pid: int) -> bool:
    """Whether it sees other files than we do; False where that may not be asked."""
    own, its = _number("/proc/self/ns/mnt"), _number(f"/proc/{pid}/ns/mnt")
    return own is not None and its is not None and own != its


def has_our_clocks(pid: int) -> bool:
    """Whether its monotonic clock is ours; True where that may not be asked."""
    own, its = _number("/proc/self/ns/time"), _number(f"/proc/{pid}/ns/time")
    return own == its or None in {own, its}


def _number(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def num_waits(path: str) -> int | None:
    """How often the thread of this ``status`` file gave up its processor to wait for something."""
    try:
        with open(path, "rb") as file:
            _, found, rest = file.read().partition(b"\nvoluntary_ctxt_switches:")
    except OSError:
        return None
    return int(rest.split(None, 1)[0]) if found else None


def stat_fields(path: str) -> list[str]:
    """Fields after the name, which may hold anything; empty when the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []
