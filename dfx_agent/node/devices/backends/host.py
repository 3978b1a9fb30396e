"""The machine itself as its kernel reports it: memory, CPUs, stalls, limits, /dev/shm."""

from __future__ import annotations

import os

from dfx_agent.node.host.cgroup import memory_groups, processor_quota
from dfx_agent.node.host.memory import (
    available_bytes,
    num_host_oom_kills,
    num_major_faults,
    total_bytes,
)
from dfx_agent.node.host.processor_time import busy_ticks, stalled_ratios
from dfx_agent.snapshot import DeviceRow, HostUse

_SHM = "/dev/shm"  # noqa: S108 (only its usage is read)


class Backend:
    """The host; always available."""

    def __init__(self) -> None:
        self._ticks: tuple[int, int] | None = None

    def probe(self) -> bool:
        """Whether the kernel reports how much memory there is."""
        return total_bytes() is not None

    def read(self) -> tuple[DeviceRow, ...]:
        """One device, "host"."""
        return (DeviceRow("host", total_bytes(), available_bytes(), host=self._use()),)

    def close(self) -> None:
        """Nothing to release."""

    def _use(self) -> HostUse:
        shm_total, shm_used = _shm_bytes()
        limit, used = _group_bytes()
        cpu_limit, throttled = processor_quota(os.getpid())
        return HostUse(
            cpu_ratio=self._cpu_ratio(),
            num_major_faults=num_major_faults(),
            num_oom_kills=num_host_oom_kills(),
            shm_total_bytes=shm_total,
            shm_used_bytes=shm_used,
            limit_bytes=limit,
            limit_used_bytes=used,
            cpu_limit=cpu_limit,
            cpu_throttled_seconds=throttled,
            stalled_ratio=stalled_ratios(),
        )

    def _cpu_ratio(self) -> float | None:
        """Busy share of all CPUs since the last read; None at the first."""
        before, self._ticks = self._ticks, busy_ticks()
        if before is None or self._ticks is None:
            return None
        busy, whole = (now - then for now, then in zip(self._ticks, before, strict=True))
        return min(1.0, max(0.0, busy / whole)) if whole > 0 else None


def _shm_bytes() -> tuple[float | None, float | None]:
    try:
        status = os.statvfs(_SHM)
    except OSError:
        return None, None
    used_blocks = status.f_blocks - status.f_bfree
    return status.f_blocks * status.f_frsize, used_blocks * status.f_frsize


def _group_bytes() -> tuple[float | None, float | None]:
    """Limit and use of the agent's tightest control group."""
    groups = memory_groups(os.getpid())
    limits = [(limit, group) for group in groups if (limit := group.limit_bytes())]
    if not limits:
        return None, None
    limit, group = min(limits, key=lambda pair: pair[0])
    return limit, group.used_bytes()
