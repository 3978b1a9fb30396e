"""Memory control groups of a process, version 2 and 1: limit, use, and the OOM killer's count.

A thin read of ``/proc/PID/cgroup`` and of the files of the group and those above it. What cannot
be read is None: in a container the groups above its own are not there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

MOUNT = "/sys/fs/cgroup"
_UNLIMITED_BYTES = 1 << 60  # version 1 says a number near 2^63 rounded to pages


@dataclass(frozen=True)
class MemoryGroup:
    """One memory control group, by its directory; ``is_v2`` says which files it has."""

    path: str
    is_v2: bool

    def limit_bytes(self) -> int | None:
        """None when there is none."""
        text = _read(self.path, "memory.max" if self.is_v2 else "memory.limit_in_bytes").strip()
        return int(text) if text.isdecimal() and int(text) < _UNLIMITED_BYTES else None

    def used_bytes(self) -> int | None:
        """What counts against the limit without file pages that the kernel can drop at once."""
        name = "memory.current" if self.is_v2 else "memory.usage_in_bytes"
        text = _read(self.path, name).strip()
        if not text.isdecimal():
            return None
        field = "inactive_file" if self.is_v2 else "total_inactive_file"
        droppable = parse_counts(_read(self.path, "memory.stat")).get(field, 0)
        return max(0, int(text) - droppable)

    def num_oom_kills(self) -> int | None:
        """Processes in it that the kernel's OOM killer has ended since it was made."""
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        return parse_counts(_read(self.path, name)).get("oom_kill")


def memory_groups(pid: int, mount: str = MOUNT) -> tuple[MemoryGroup, ...]:
    """The process's own group and those above it, innermost first; empty where none is seen."""
    found = parse_cgroup(_read(f"/proc/{pid}", "cgroup"))
    if found is None:
        return ()
    path, is_v2 = found
    roots = ("", "unified") if is_v2 else ("memory",)
    own = "memory.max" if is_v2 else "memory.limit_in_bytes"
    for root in (os.path.join(mount, root).rstrip("/") for root in roots):
        parts = [part for part in path.split("/") if part]
        steps = ["/".join((root, *parts[:n])) for n in range(len(parts), -1, -1)]
        groups = tuple(MemoryGroup(p, is_v2) for p in steps if os.path.exists(f"{p}/{own}"))
        if groups:
            return groups
    return ()


def processor_quota(pid: int, mount: str = MOUNT) -> tuple[float | None, float | None]:
    """(processors that the tightest group allows, seconds in which it held its threads back).

    Version 2 alone; None where there is no quota.
    """
    found = parse_cgroup(_read(f"/proc/{pid}", "cgroup"), "cpu")
    if found is None or not found[1]:
        return None, None
    parts = [part for part in found[0].split("/") if part]
    groups = ["/".join((mount, *parts[:n])) for n in range(len(parts), -1, -1)]
    quotas = [(quota, group) for group in groups if (quota := _quota(_read(group, "cpu.max")))]
    if not quotas:
        return None, None
    quota, group = min(quotas)
    micros = parse_counts(_read(group, "cpu.stat")).get("throttled_usec")
    return quota, None if micros is None else micros / 1e6


def _quota(text: str) -> float | None:
    quota, _, period = text.strip().partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def parse_cgroup(text: str, controller: str = "memory") -> tuple[str, bool] | None:
    """(path of the group that limits memory, whether it is version 2) of ``/proc/PID/cgroup``."""
    rows = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    for _, controllers, path in rows:
        if controller in controllers.split(","):
            return None if "/.." in path else (path, False)
    for number, controllers, path in rows:
        if number == "0" and not controllers:
            return None if "/.." in path else (path, True)
    return None


def parse_counts(text: str) -> dict[str, int]:
    """Lines of a name and a number, as in ``memory.stat``; others are left out."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _read(directory: str, name: str) -> str:
    try:
        with open(os.path.join(directory, name), "rb") as file:
            return file.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
