"""Limits of memory that a process meets, and what is free of them; read once a second at most."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

from dfx_agent.facts.memory import MemoryLimit
from dfx_agent.node.host.cgroup import MemoryGroup
from dfx_agent.node.host.memory import available_bytes, total_bytes

_LOOK_EVERY_SECONDS = 1.0
_HOST = ""


class MemoryLimits:
    """All limits of this machine that somebody asked for."""

    def __init__(self) -> None:
        self._node = socket.gethostname()
        self._known: dict[str, MemoryLimit | None] = {}
        self._read_at = 0.0

    def of(self, groups: Iterable[MemoryGroup]) -> tuple[MemoryLimit, ...]:
        """Those of the groups, in their order, then the host's; without those that have none."""
        now = time.monotonic()
        if now - self._read_at >= _LOOK_EVERY_SECONDS:
            self._read_at = now
            self._known.clear()
        known = self._known
        found = []
        for group in groups:
            if group.path not in known:
                known[group.path] = self._read(group.path, group.limit_bytes(), group.used_bytes())
            found.append(known[group.path])
        if _HOST not in known:
            free, total = available_bytes(), total_bytes()
            used = None if free is None or total is None else total - free
            known[_HOST] = self._read(_HOST, total, used)
        return tuple(limit for limit in (*found, known[_HOST]) if limit is not None)

    def _read(self, path: str, limit: int | None, used: int | None) -> MemoryLimit | None:
        if limit is None or used is None:
            return None
        return MemoryLimit(self._node, path, limit, max(0, limit - used))
