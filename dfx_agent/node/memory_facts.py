"""Builds the facts for the memory judge: memory use of each process, and the limits that apply."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from statistics import median

from dfx_agent.facts.memory import DeviceUse, MemoryFacts, MemoryLimit, Samples
from dfx_agent.node.host.cgroup import MemoryGroup
from dfx_agent.node.host.memory import available_bytes, total_bytes
from dfx_agent.node.memory import HELD, device_rows
from dfx_agent.node.process import Process
from dfx_agent.snapshot import DeviceMemory, MemoryHistory

_LOOK_EVERY_SECONDS = 1.0
_HOST = ""
# an eighth of the smallest leak that is reported; limits are not read for a process whose memory
# changed by less over the stored steps
_LEAST_CHANGE_BYTES = 4 * 2**20
_OFFLOAD = "offload"


class MemoryReader:
    """Reads memory facts of the processes on this machine."""

    def __init__(self) -> None:
        self._limits = MemoryLimits()

    def facts(self, processes: Iterable[Process]) -> tuple[MemoryFacts, ...]:
        """Facts of each live process, in the given order."""
        return tuple(self._process_facts(process) for process in processes if process.is_living)

    def history(self, process: Process) -> MemoryHistory | None:
        """Host memory over the steps of a process; None before its first step."""
        memory = process.memory
        latest = tuple(memory.trend.samples)
        if not latest:
            return None
        sparse = memory.trend.sparse_samples[max(memory.trend.sparse_samples)]
        samples = [*(sample for sample in sparse if sample[0] < latest[0][0]), *latest]
        limits = self._limits.read(memory.groups) if process.is_living else ()
        steps, numbers = zip(*samples, strict=True)
        free_bytes = min((limit.free_bytes for limit in limits), default=None)
        role = process.follower.identity.role
        return MemoryHistory(role, process.label, steps, numbers, free_bytes)

    def _process_facts(self, process: Process) -> MemoryFacts:
        memory = process.memory
        windows = [step.window for step in process.windows]
        lengths = [
            window.end_ns - window.begin_ns for window in windows if window.end_ns is not None
        ]
        samples = tuple(memory.trend.samples)
        sparse = tuple(map(tuple, memory.trend.sparse_samples.values()))
        has_changed = any(map(_has_changed, (samples, *sparse)))
        offloads = any(stage == _OFFLOAD for stage, _ in process.stamps) or any(
            name.startswith(HELD) for name in process.gauges
        )
        rows = device_rows(process.gauges)
        outside = memory.beside_allocator if len(rows) == 1 else None
        return MemoryFacts(
            process=process.id,
            step=process.step,
            step_seconds=max(1, median(lengths)) / 1e9 if lengths else None,
            samples=samples,
            sparse_samples=sparse,
            limits=self._limits.read(memory.groups) if has_changed else (),
            devices=tuple(
                DeviceUse(
                    row.device,
                    row.limit_bytes,
                    row.reserved_bytes,
                    memory.unused(row.device),
                    memory.unused_while_offloaded(row.device) if offloads else (),
                    memory.allocated(row.device),
                    _peak(row),
                    outside.now_bytes if outside else None,
                    memory.allocated_before(row.device),
                )
                for row in rows
            ),
            heap=memory.heap.now,
        )


def _peak(row: DeviceMemory) -> float | None:
    reported = [*row.stage_peak_bytes.values(), row.allocated_bytes]
    return max((num_bytes for num_bytes in reported if num_bytes is not None), default=None)


def _has_changed(samples: Samples) -> bool:
    values = [num_bytes for _, num_bytes in samples]
    return bool(values) and max(values) - min(values) >= _LEAST_CHANGE_BYTES


class MemoryLimits:
    """Memory limits of this machine, read at most once a second."""

    def __init__(self) -> None:
        self._node = socket.gethostname()
        self._limit_by_path: dict[str, MemoryLimit | None] = {}
        self._read_at = 0.0

    def read(self, groups: Iterable[MemoryGroup]) -> tuple[MemoryLimit, ...]:
        """Limits of the groups, in the given order, then of the host; without unlimited ones."""
        now = time.monotonic()
        if now - self._read_at >= _LOOK_EVERY_SECONDS:
            self._read_at = now
            self._limit_by_path.clear()
        limit_by_path = self._limit_by_path
        limits = []
        for group in groups:
            if group.path not in limit_by_path:
                limit_by_path[group.path] = self._read(
                    group.path, group.limit_bytes(), group.used_bytes()
                )
            limits.append(limit_by_path[group.path])
        if _HOST not in limit_by_path:
            free, total = available_bytes(), total_bytes()
            used = None if free is None or total is None else total - free
            limit_by_path[_HOST] = self._read(_HOST, total, used)
        return tuple(limit for limit in (*limits, limit_by_path[_HOST]) if limit is not None)

    def _read(self, path: str, limit: int | None, used: int | None) -> MemoryLimit | None:
        if limit is None or used is None:
            return None
        return MemoryLimit(self._node, path, limit, max(0, limit - used))
