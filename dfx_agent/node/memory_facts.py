"""What the judge of memory is given of each process: its use, and the limits that it meets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from statistics import median

from dfx_agent.facts.memory import DeviceUse, MemoryFacts, MemoryLimit, Samples
from dfx_agent.node.host.cgroup import MemoryGroup
from dfx_agent.node.host.memory import available_bytes, total_bytes
from dfx_agent.node.memory.gauges import HELD, device_rows
from dfx_agent.node.process import Process
from dfx_agent.snapshot import DeviceMemory

_LOOK_EVERY_SECONDS = 1.0
_HOST = ""
# an eighth of the least that is told as a leak: whose memory has not changed by that much over the
# steps that are kept needs no limits, and files of the kernel stay unread
_LEAST_CHANGE_BYTES = 4 * 2**20
_OFFLOAD = "offload"


class MemoryReader:
    """Of one machine; ``facts`` when somebody asks."""

    def __init__(self) -> None:
        self._limits = MemoryLimits()

    def facts(self, processes: Iterable[Process]) -> tuple[MemoryFacts, ...]:
        """Of those that live, in their order."""
        return tuple(self._of(process) for process in processes if process.is_living)

    def _of(self, process: Process) -> MemoryFacts:
        memory = process.memory
        windows = [step.window for step in process.windows]
        lengths = [w.end_ns - w.begin_ns for w in windows if w.end_ns is not None]
        samples = tuple(memory.trend.samples)
        sparse = tuple(map(tuple, memory.trend.sparse_samples.values()))
        has_changed = any(map(_has_changed, (samples, *sparse)))
        offloads = any(stage == _OFFLOAD for stage, _ in process.stamps) or any(
            name.startswith(HELD) for name in process.gauges
        )
        rows = device_rows(process.gauges)
        beside = memory.beside_allocator if len(rows) == 1 else None
        return MemoryFacts(
            process=process.id,
            step=process.step,
            step_seconds=max(1, median(lengths)) / 1e9 if lengths else None,
            samples=samples,
            sparse_samples=sparse,
            limits=self._limits.of(memory.groups) if has_changed else (),
            devices=tuple(
                DeviceUse(
                    r.device,
                    r.limit_bytes,
                    r.reserved_bytes,
                    memory.unused(r.device),
                    memory.kept(r.device) if offloads else (),
                    memory.allocated(r.device),
                    _peak(r),
                    beside.now_bytes if beside else None,
                    memory.allocated_before(r.device),
                )
                for r in rows
            ),
            heap=memory.heap.now,
        )


def _peak(row: DeviceMemory) -> float | None:
    told = [*row.stage_peak_bytes.values(), row.allocated_bytes]
    return max((num_bytes for num_bytes in told if num_bytes is not None), default=None)


def _has_changed(samples: Samples) -> bool:
    known = [num_bytes for _, num_bytes in samples]
    return bool(known) and max(known) - min(known) >= _LEAST_CHANGE_BYTES


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
