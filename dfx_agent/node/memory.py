"""Memory of one process: current use, growth, and kills by the OOM killer in its control group."""

from __future__ import annotations

import mmap
import signal
from collections.abc import Iterable, Mapping
from typing import Any

from dfx_agent.facts.memory import Samples, highest_before
from dfx_agent.facts.rank import ExitStatus
from dfx_agent.node.host.cgroup import MemoryGroup, memory_groups
from dfx_agent.node.host.memory import (
    MemoryTrend,
    ProcessBytes,
    glibc_arena_bytes,
    num_host_oom_kills,
    process_bytes,
)
from dfx_agent.node.time.account import SpanEvent
from dfx_agent.snapshot import DeviceMemory, GlibcHeap, HeldMemory, NonAllocatorMemory
from dfx_agent.wire.records import STAGE

_USED, _MAPPED, _FREE, _PIECES = (
    f"heap/{name}" for name in ("used_bytes", "mapped_bytes", "free_bytes", "num_free_pieces")
)
_GIVEN_UP = "heap/given_up"
_LOOK_EVERY_NS = 30 * 10**9
_MUCH_BYTES = 64 * 2**20
_EVERY_NS = 10**9
_MAX_STAGES = 64
_ROLLOUT, _BEFORE_ONLOAD = "rollout", "start/offload"

# gauges of the guest: "memory/<field>@<device>"
_PREFIX = "memory/"
_FIELDS = frozenset(
    {"allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
     "largest_free_bytes", "limit_bytes", "num_alloc_retries", "num_ooms"}
)  # fmt: skip
HELD = "memory/at/"
_HELD_FIELDS = frozenset({"allocated_bytes", "reserved_bytes", "resident_bytes", "virtual_bytes"})
_PARTS_BEFORE_STAGE = 3
# prefixes of fields that exist once per stage
_STAGE_FIELDS = {
    "stage_peak_bytes/": "stage_peak_bytes",
    "stage/allocated_bytes/": "stage_allocated_bytes",
    "stage/reserved_bytes/": "stage_reserved_bytes",
    "stage/num_alloc_retries/": "stage_num_alloc_retries",
    "stage/num_ooms/": "stage_num_ooms",
}


def device_rows(gauges: Mapping[str, float]) -> tuple[DeviceMemory, ...]:
    """One row per device that a gauge names, cuda:2 before cuda:10; a missing value is None."""
    rows: dict[str, dict[str, Any]] = {}
    for name, value in gauges.items():
        if name.startswith(_PREFIX):
            field, _, device = name[len(_PREFIX) :].rpartition("@")
            if field in _FIELDS:
                rows.setdefault(device, {})[field] = value
            else:
                _add_stage(rows, device, field, value)
    return tuple(DeviceMemory(device, **rows[device]) for device in sorted(rows, key=_device_order))


def _add_stage(rows: dict[str, dict[str, Any]], device: str, field: str, value: float) -> None:
    for prefix, row_field in _STAGE_FIELDS.items():
        if field.startswith(prefix):
            stages = rows.setdefault(device, {}).setdefault(row_field, {})
            stages[field[len(prefix) :]] = value


def held_rows(gauges: Mapping[str, float]) -> tuple[HeldMemory, ...]:
    """One row per stage, point in time and device, in the order of the guest's gauges."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, value in gauges.items():
        if name.startswith(HELD):
            rest, _, device = name[len(HELD) :].rpartition("@")
            parts = rest.split("/", _PARTS_BEFORE_STAGE)
            if len(parts) > _PARTS_BEFORE_STAGE and parts[2] in _HELD_FIELDS:
                side, state, field, stage = parts
                rows.setdefault((stage, f"{side}/{state}", device), {})[field] = value
    return tuple(HeldMemory(*key, **values) for key, values in rows.items())


def _device_order(device: str) -> tuple[str, int, str]:
    kind, _, index = device.rpartition(":")
    return kind, int(index) if index.isdecimal() else 0, device


class ProcessMemory:
    """Sampled at the end of each step and once a second; None if the kernel reports no value."""

    def __init__(self) -> None:
        self.bytes = ProcessBytes()
        self.stage_bytes: dict[str, ProcessBytes] = {}  # latest sample in each stage
        self.trend = MemoryTrend()
        self.heap = ProcessHeap()
        self.beside_allocator: NonAllocatorMemory | None = None
        self._reserved: list[float | None] = []
        self._gaps: dict[str, MemoryTrend] = {}
        self._allocated: dict[str, MemoryTrend] = {}
        self._unused_offloaded: dict[str, MemoryTrend] = {}
        self.groups: tuple[MemoryGroup, ...] = ()
        self.was_oom_killed = False
        self._num_oom_kills: int | None = None
        self._next_ns = 0

    @property
    def anonymous_bytes(self) -> int | None:
        return self.bytes.anonymous

    def sample(
        self,
        now_ns: int,
        pid: int,
        step: int | None,
        open_now: Iterable[SpanEvent] = (),
        *,
        is_step_over: bool,
    ) -> None:
        """Read the memory now. ``step``: the latest finished step, None if it has no number."""
        if is_step_over or now_ns >= self._next_ns:
            self.bytes = process_bytes(pid)
        if now_ns >= self._next_ns:
            self._note_stage(open_now)
            if not self._next_ns:
                self.groups = memory_groups(pid)
            self._next_ns = now_ns + _EVERY_NS
            self._num_oom_kills = self._count_oom_kills()
        if step is not None and self.anonymous_bytes is not None:
            self.trend.add(step, self.anonymous_bytes)

    def _note_stage(self, open_now: Iterable[SpanEvent]) -> None:
        """Assign the sample to the stage that began last, as the guest does for device memory."""
        stages = [event for event in open_now if event.kind == STAGE]
        if not stages or self.bytes.resident is None:
            return
        name = max(stages, key=lambda event: event.begin_ns).name
        if name in self.stage_bytes or len(self.stage_bytes) < _MAX_STAGES:
            self.stage_bytes[name] = self.bytes

    def sample_devices(self, step: int, gauges: Mapping[str, float]) -> None:
        """At the end of a step: memory that each device's allocator reserved but does not use."""
        held = held_rows(gauges)
        for row in device_rows(gauges):
            self._add(self._gaps, row.device, step, row.reserved_bytes, row.allocated_bytes)
            self._add(self._allocated, row.device, step, row.allocated_bytes, 0.0)
            self._add(self._unused_offloaded, row.device, step, *_while_offloaded(row, held))

    @staticmethod
    def _add(
        gaps: dict[str, MemoryTrend], device: str, step: int, held: float | None, used: float | None
    ) -> None:
        if held is not None and used is not None:
            gaps.setdefault(device, MemoryTrend()).add(step, held - used)

    def unused(self, device: str) -> Samples:
        """(step, bytes that the allocator reserved but did not use) of the latest 64 steps."""
        return _samples(self._gaps, device)

    def unused_while_offloaded(self, device: str) -> Samples:
        """Like ``unused``, measured in each step while the model states were off the device."""
        return _samples(self._unused_offloaded, device)

    def allocated(self, device: str) -> Samples:
        """(step, bytes of tensors) of the latest 64 steps."""
        return _samples(self._allocated, device)

    def allocated_before(self, device: str) -> float | None:
        """Highest value of ``allocated`` before those 64 steps, over the latest 512 steps."""
        trend = self._allocated.get(device)
        if trend is None or not trend.samples:
            return None
        sparse = (tuple(samples) for samples in trend.sparse_samples.values())
        return highest_before(trend.samples[0][0], *sparse)

    def note_driver(self, own_bytes: Mapping[str, float], gauges: Mapping[str, float]) -> None:
        """Memory on the devices that the driver reports for this process.

        Driver and allocator are read about once a second at different times, so a value counts only
        if the allocator's value did not change.
        """
        reserved = [row.reserved_bytes for row in device_rows(gauges)]
        before, self._reserved = self._reserved, reserved
        if not own_bytes or reserved != before or len(own_bytes) != len(reserved):
            return
        if None not in reserved:
            other_bytes = max(0.0, sum(own_bytes.values()) - sum(filter(None, reserved)))
            previous = self.beside_allocator
            least = other_bytes if previous is None else min(other_bytes, previous.least_bytes)
            most = other_bytes if previous is None else max(other_bytes, previous.most_bytes)
            self.beside_allocator = NonAllocatorMemory(other_bytes, least, most)

    def note_end(self, status: ExitStatus | None) -> None:
        """After the exit: check whether the OOM killer acted in the group since the last sample."""
        if status is None or status.signal != signal.SIGKILL or self._num_oom_kills is None:
            return
        now = self._count_oom_kills()
        self.was_oom_killed = now is not None and now > self._num_oom_kills

    def _count_oom_kills(self) -> int | None:
        """Count of the control group, which counts only its own kills; else of the host."""
        return self.groups[0].num_oom_kills() if self.groups else num_host_oom_kills()


def _samples(trends: Mapping[str, MemoryTrend], device: str) -> Samples:
    trend = trends.get(device)
    return () if trend is None else tuple(trend.samples)


def _while_offloaded(
    row: DeviceMemory, held: Iterable[HeldMemory]
) -> tuple[float | None, float | None]:
    """(reserved, allocated) during rollout; without rollout, just before states are loaded back.

    If several stages load states, the one with the least unused memory before it is used.
    """
    if _ROLLOUT in row.stage_reserved_bytes:
        return row.stage_reserved_bytes[_ROLLOUT], row.stage_allocated_bytes.get(_ROLLOUT)
    pairs = [
        (row_held.reserved_bytes, row_held.allocated_bytes)
        for row_held in held
        if (row_held.point, row_held.device) == (_BEFORE_ONLOAD, row.device)
        and row_held.reserved_bytes is not None
        and row_held.allocated_bytes is not None
    ]
    return min(pairs, key=lambda pair: pair[0] - pair[1], default=(None, None))


class ProcessHeap:
    """Heap of one process; ``now`` is None if the guest does not report it or has stopped to."""

    def __init__(self) -> None:
        self.now: GlibcHeap | None = None
        self._last_values: tuple[float | None, ...] = ()
        self._next_ns = 0

    def look(self, now_ns: int, pid: int, gauges: Mapping[str, float]) -> None:
        """Update if the guest reported new values; they are only valid for a moment."""
        if _FREE not in gauges:
            return
        if _GIVEN_UP in gauges:
            self.now = None
            return
        values = tuple(gauges.get(name) for name in (_USED, _MAPPED, _FREE, _PIECES))
        if values == self._last_values or now_ns < self._next_ns:
            return
        self._last_values, self._next_ns = values, now_ns + _LOOK_EVERY_NS
        used, mapped, free, num_pieces = (value or 0.0 for value in values)
        resident = glibc_arena_bytes(pid) if free >= _MUCH_BYTES else used + free
        self.now = heap_of(used, mapped, free, num_pieces, resident)


def heap_of(
    used: float, mapped: float, free: float, num_pieces: float, resident: float | None
) -> GlibcHeap:
    """All values in bytes. ``resident``: memory of the arenas, None if unknown.

    One page is subtracted per free piece, because a piece begins and ends within a page.
    """
    if resident is None:
        return GlibcHeap(used + mapped, None, None)
    retained = min(free, max(0.0, resident - used))
    trimmable = max(0.0, retained - num_pieces * mmap.PAGESIZE)
    return GlibcHeap(used + mapped, retained, trimmable)
