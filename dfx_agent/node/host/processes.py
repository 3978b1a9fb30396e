"""Processes of this machine: process table, arguments, environment, namespaces; see proc(5)."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from dfx_agent.base.loopback import is_loopback
from dfx_agent.wire.segment import boot_id

# indices of the fields after the name
STATE, PARENT, GROUP, MINOR_FAULTS, USER_TICKS, SYSTEM_TICKS = 0, 1, 2, 7, 11, 12
START_TICKS, EXIT_STATUS = 19, 49
# the number of the first pid namespace of every kernel: linux/proc_ns.h, PROC_PID_INIT_INO
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
_MAX_COMMAND_BYTES = 64 * 1024
_MAX_ENVIRONMENT_BYTES = 256 * 1024


class ProcessEntry(NamedTuple):
    """``start_ticks`` distinguishes processes that had the same pid."""

    pid: int
    parent: int
    group: int
    start_ticks: int


def process_table() -> dict[int, ProcessEntry]:
    """All processes by pid; processes that end meanwhile are left out."""
    entries = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = stat_fields(f"/proc/{name}/stat")
            if len(fields) > START_TICKS:
                pid = int(name)
                numbers = (int(fields[index]) for index in (PARENT, GROUP, START_TICKS))
                entries[pid] = ProcessEntry(pid, *numbers)
    return entries


def command_line(pid: int) -> tuple[str, ...]:
    """Empty for a kernel thread, an unreadable process, and a process that is gone."""
    text = _read(f"/proc/{pid}/cmdline", _MAX_COMMAND_BYTES).rstrip(b"\0")
    return tuple(part.decode("utf-8", "replace") for part in text.split(b"\0")) if text else ()


def environment_value(pid: int, name: str) -> str:
    """Value that the process was started with; "" if it is unset or not readable."""
    head = name.encode() + b"="
    for entry in _read(f"/proc/{pid}/environ", _MAX_ENVIRONMENT_BYTES).split(b"\0"):
        if entry.startswith(head):
            return entry[len(head) :].decode("utf-8", "replace")
    return ""


def environment_values(pid: int, names: Collection[str]) -> dict[str, str]:
    """Values of several variables that the process was started with; unset ones are left out."""
    entries = _read(f"/proc/{pid}/environ", _MAX_ENVIRONMENT_BYTES).split(b"\0")
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in entries)
    return {name: value for name, sign, value in pairs if sign and name in names}


def has_mapped(pid: int, parts_of_path: tuple[bytes, ...]) -> bool:
    """Whether the process has mapped a file whose path contains one of these parts."""
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
    """Whether our pids are those of the host, so that we are in no container with own pids."""
    return _number("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE


def is_in_container(pid: int) -> bool:
    """Whether it has another mount namespace than we; False if that is not readable."""
    own, its = _number("/proc/self/ns/mnt"), _number(f"/proc/{pid}/ns/mnt")
    return own is not None and its is not None and own != its


def has_our_clocks(pid: int) -> bool:
    """Whether its monotonic clock is the same as ours; True if that is not readable."""
    own, its = _number("/proc/self/ns/time"), _number(f"/proc/{pid}/ns/time")
    return own == its or None in {own, its}


def _number(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def num_waits(path: str) -> int | None:
    """How often the thread of this ``status`` file has waited, giving up its CPU."""
    try:
        with open(path, "rb") as file:
            _, found, rest = file.read().partition(b"\nvoluntary_ctxt_switches:")
    except OSError:
        return None
    return int(rest.split(None, 1)[0]) if found else None


def stat_fields(path: str) -> list[str]:
    """Fields after the name, which may contain any character; empty if the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []


def rendezvous_of(pid: int) -> str:
    """For example "10.0.0.1:29500"; "" if the environment has no address or is not readable.

    A loopback address is only valid in its network namespace, so the namespace is added to it.
    """
    host, port = (environment_value(pid, name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not host or not port:
        return ""
    return f"{host}:{port}" + (f"@{_network_of(pid)}" if is_loopback(host) else "")


def _network_of(pid: int) -> str:
    """Identifies the network namespace and the boot."""
    try:
        return f"{boot_id().hex()[:8]}/{os.readlink(f'/proc/{pid}/ns/net')}"
    except OSError:
        return boot_id().hex()[:8]


_MAX_OPEN = 1024


class Allowance:
    """File descriptors that the agent may hold open for the ranks that it follows. Thread-safe.

    An agent may have only a few hundred, and its server needs some of them. For ranks beyond the
    limit the file is opened for each poll, which costs 10 µs more.
    """

    def __init__(self, num_allowed: int) -> None:
        self._num_free = num_allowed
        self._lock = threading.Lock()

    def take(self, num: int) -> bool:
        """Reserve ``num`` descriptors. Returns False, and reserves none, if fewer are free."""
        with self._lock:
            is_granted = num <= self._num_free
            self._num_free -= num if is_granted else 0
        return is_granted

    def give_back(self, num: int) -> None:
        """Return reserved descriptors."""
        with self._lock:
            self._num_free += num


def process_allowance() -> Allowance:
    """Half of this process's soft limit, at most 1,024."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Allowance(_MAX_OPEN if soft == resource.RLIM_INFINITY else min(_MAX_OPEN, soft // 2))
