"""Memory of one process: what it has, how it grows, and what the OOM killer did in its group."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from dfx_agent.facts.exit_status import ExitStatus
from dfx_agent.facts.memory import Samples
from dfx_agent.host.cgroup import MemoryGroup, memory_groups
from dfx_agent.host.memory import MemoryTrend, anonymous_bytes, num_host_oom_kills
from dfx_agent.node.memory.gauges import device_rows
from dfx_agent.node.memory.heap import ProcessHeap

_EVERY_NS = 10**9
_ROLLOUT = "rollout"


class ProcessMemory:
    """Sampled at the end of steps, and once a second; None is what the kernel does not tell."""

    def __init__(self) -> None:
        self.anonymous_bytes: int | None = None
        self.trend = MemoryTrend()
        self.heap = ProcessHeap()
        self._gaps: dict[str, MemoryTrend] = {}
        self._kept: dict[str, MemoryTrend] = {}
        self.groups: tuple[MemoryGroup, ...] = ()
        self.was_oom_killed = False
        self._num_oom_kills: int | None = None
        self._next_ns = 0

    def sample(self, now_ns: int, pid: int, step: int | None, *, is_step_over: bool) -> None:
        """``step`` is the newest that is over, None for one without a number."""
        if is_step_over or now_ns >= self._next_ns:
            self.anonymous_bytes = anonymous_bytes(pid)
        if now_ns >= self._next_ns:
            if not self._next_ns:
                self.groups = memory_groups(pid)
            self._next_ns = now_ns + _EVERY_NS
            self._num_oom_kills = self._count_oom_kills()
        if step is not None and self.anonymous_bytes is not None:
            self.trend.add(step, self.anonymous_bytes)

    def sample_devices(self, step: int, gauges: Mapping[str, float]) -> None:
        """At the end of a step: what the allocator of each device holds and does not use."""
        for row in device_rows(gauges):
            held, used = row.stage_reserved_bytes, row.stage_allocated_bytes
            self._add(self._gaps, row.device, step, row.reserved_bytes, row.allocated_bytes)
            self._add(self._kept, row.device, step, held.get(_ROLLOUT), used.get(_ROLLOUT))

    @staticmethod
    def _add(
        gaps: dict[str, MemoryTrend], device: str, step: int, held: float | None, used: float | None
    ) -> None:
        if held is not None and used is not None:
            gaps.setdefault(device, MemoryTrend()).add(step, held - used)

    def unused(self, device: str) -> Samples:
        """(step, bytes that its allocator held and did not use) of the newest 64 steps."""
        gap = self._gaps.get(device)
        return () if gap is None else tuple(gap.samples)

    def kept(self, device: str) -> Samples:
        """The same as its rollout was last seen in each step."""
        kept = self._kept.get(device)
        return () if kept is None else tuple(kept.samples)

    def note_end(self, status: ExitStatus | None) -> None:
        """It is gone: whether the OOM killer has struck in its group since the look before."""
        if status is None or status.signal != signal.SIGKILL or self._num_oom_kills is None:
            return
        now = self._count_oom_kills()
        self.was_oom_killed = now is not None and now > self._num_oom_kills

    def _count_oom_kills(self) -> int | None:
        """Of its control group, which counts its own victims; else of the host."""
        return self.groups[0].num_oom_kills() if self.groups else num_host_oom_kills()
