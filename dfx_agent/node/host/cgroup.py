"""Memory control groups of a process, version 2 and 1: limit, use, and number of OOM kills.

Reads ``/proc/PID/cgroup`` and the files of the group and its parents. Unreadable values are None:
in a container the parents of its own group are not visible.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

MOUNT = "/sys/fs/cgroup"
_UNLIMITED_BYTES = 1 << 60  # version 1 reports a number near 2^63, rounded to pages


@dataclass(frozen=True)
class MemoryGroup:
    """One memory control group. ``path``: its directory; ``is_v2`` decides which files it has."""

    path: str
    is_v2: bool

    def limit_bytes(self) -> int | None:
        """None if the group has no limit."""
        text = _read(self.path, "memory.max" if self.is_v2 else "memory.limit_in_bytes").strip()
        return int(text) if text.isdecimal() and int(text) < _UNLIMITED_BYTES else None

    def used_bytes(self) -> int | None:
        """Memory that counts against the limit, without file pages that can be dropped at once."""
        name = "memory.current" if self.is_v2 else "memory.usage_in_bytes"
        text = _read(self.path, name).strip()
        if not text.isdecimal():
            return None
        field = "inactive_file" if self.is_v2 else "total_inactive_file"
        droppable = parse_counts(_read(self.path, "memory.stat")).get(field, 0)
        return max(0, int(text) - droppable)

    def num_oom_kills(self) -> int | None:
        """Number of its processes that the OOM killer has killed since the group was created."""
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        return parse_counts(_read(self.path, name)).get("oom_kill")


def memory_groups(pid: int, mount: str = MOUNT) -> tuple[MemoryGroup, ...]:
    """The process's own group and its parents, innermost first; empty if none is visible."""
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


def processor_quota(pid: int) -> tuple[float | None, float | None]:
    """(CPUs that the tightest group allows, seconds for which the group was throttled).

    Version 2 only; None if there is no quota.
    """
    found = parse_cgroup(_read(f"/proc/{pid}", "cgroup"), "cpu")
    if found is None or not found[1]:
        return None, None
    parts = [part for part in found[0].split("/") if part]
    groups = ["/".join((MOUNT, *parts[:n])) for n in range(len(parts), -1, -1)]
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
    """(path of the group of this controller, whether it is version 2) from ``/proc/PID/cgroup``."""
    rows = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    for _, controllers, path in rows:
        if controller in controllers.split(","):
            return None if "/.." in path else (path, False)
    for number, controllers, path in rows:
        if number == "0" and not controllers:
            return None if "/.." in path else (path, True)
    return None


def parse_counts(text: str) -> dict[str, int]:
    """Parse lines of a name and a number, as in ``memory.stat``; other lines are skipped."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _read(directory: str, name: str) -> str:
    try:
        with open(os.path.join(directory, name), "rb") as file:
            return file.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
