"""Samples the framework allocator about once a second, for devices that are already in use.

The sampler reads counters that torch has in host memory. No device is initialised, synchronised or
queried, and no peak is reset. The peak of a stage is the highest sample in it. If the allocator's
own peak has changed between two samples of one stage, that exact value is used. Gauges are
"memory/<field>@<device>", "memory/stage_peak_bytes/<stage>@<device>" and
"memory/stage/<field>/<stage>@<device>".

No counter contains the largest free block. It is found in the list of blocks, every 30 s, less
often if that takes long, and not at all after 0.1 s of CPU time.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

from dfx_agent.shim.memory_points import ACCELERATORS, EmitGauge, figure_at

_MAX_STAGES = 64
_PATCH = "patch/allocator_memory"

# field -> the path in memory_stats_as_nested_dict
_FIELDS = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
    "active_bytes": ("active_bytes", "all", "current"),
    "inactive_split_bytes": ("inactive_split_bytes", "all", "current"),
    "num_alloc_retries": ("num_alloc_retries",),
    "num_ooms": ("num_ooms",),
}

_PEAK = "allocated_bytes", "all", "peak"
_OF_STAGES = "allocated_bytes", "reserved_bytes"
_COUNTED = "num_alloc_retries", "num_ooms"
_BLOCKS_EVERY_SECONDS = 30.0
_PAUSE_PER_COST, _MAX_COST_SECONDS = 2000.0, 0.1


class _DeviceSample(NamedTuple):
    """One sample of one device."""

    stage: str
    peak: float | None
    counts: tuple[float | None, ...]  # in the order of _COUNTED


class MemorySampler:
    """Samples every device of this process; an accelerator that raises is never sampled again."""

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self._state: float | None = None
        self._limits: dict[str, float | None] = {}
        self._peaks: dict[tuple[str, str], float] = {}
        self._last: dict[str, _DeviceSample] = {}
        self._counts: dict[tuple[str, str, str], float] = {}
        self._reported: dict[str, float] = {}
        self._next_blocks = time.monotonic() + _BLOCKS_EVERY_SECONDS

    @property
    def is_used(self) -> bool:
        """Whether a device of this process has been seen in use."""
        return bool(self._limits)

    def sample(self, emit_gauge: EmitGauge, stage: str) -> None:
        """Emit the current gauges; ``stage`` is the innermost open one or "".

        Nothing is emitted in a process without a device.
        """
        num_devices = 0
        for name in ACCELERATORS:
            module = sys.modules.get(f"torch.{name}")
            if module is None or name in self._failed:
                continue
            try:
                num_devices += self._sample_all(module, name, emit_gauge, stage)
            except Exception:  # noqa: BLE001 (never into the job: reported by the gauge below)
                self._failed.add(name)
        state = -1.0 if self._failed else 1.0
        if (num_devices or self._failed) and state != self._state:
            self._state = state
            emit_gauge(_PATCH, state)

    def _sample_all(self, module: Any, name: str, emit_gauge: EmitGauge, stage: str) -> int:
        if not module.is_initialized():
            return 0
        num_used = 0
        for index in range(module.device_count()):
            stats = module.memory_stats_as_nested_dict(index)
            values = {field: figure_at(stats, path) for field, path in _FIELDS.items()}
            device = f"{name}:{index}"
            if values["reserved_bytes"] or device in self._limits:  # emptied is not unused
                num_used += 1
                values["limit_bytes"] = self._limit(module, device, index)
                _emit(emit_gauge, device, values)
                counts = tuple(values[field] for field in _COUNTED)
                now = _DeviceSample(stage, figure_at(stats, _PEAK), counts)
                self._note_stage(emit_gauge, device, now, values)
        if num_used and time.monotonic() >= self._next_blocks:
            self._sample_blocks(module, name, emit_gauge)
        return num_used

    def _sample_blocks(self, module: Any, name: str, emit_gauge: EmitGauge) -> None:
        """Emit the largest free block of every device in use."""
        begin_seconds = time.thread_time()
        largest = {f"{name}:{index}": 0.0 for index in range(module.device_count())}
        for segment in module.memory_snapshot():
            device = f"{name}:{segment['device']}"
            free = (block["size"] for block in segment["blocks"] if block["state"] == "inactive")
            largest[device] = max(largest.get(device, 0.0), float(max(free, default=0)))
        cost_seconds = time.thread_time() - begin_seconds
        pause = cost_seconds * _PAUSE_PER_COST if cost_seconds < _MAX_COST_SECONDS else float("inf")
        self._next_blocks = time.monotonic() + _BLOCKS_EVERY_SECONDS + pause
        for device in self._limits.keys() & largest.keys():
            emit_gauge(f"memory/largest_free_bytes@{device}", largest[device])

    def _note_stage(
        self,
        emit_gauge: EmitGauge,
        device: str,
        now: _DeviceSample,
        values: dict[str, float | None],
    ) -> None:
        before, self._last[device] = self._last.get(device), now
        key, allocated = (device, now.stage), values["allocated_bytes"]
        if not now.stage or allocated is None:
            return
        is_same = before is not None and before.stage == now.stage
        if is_same and before is not None and now.peak not in (None, before.peak):
            allocated = max(allocated, now.peak or 0.0)
        if not self._note_peak(emit_gauge, device, now.stage, allocated):
            return
        for field in _OF_STAGES:
            self._emit_if_new(emit_gauge, field, key, values[field])
        for place, field in enumerate(_COUNTED) if before is not None else ():
            last, count = before.counts[place] if before else None, now.counts[place]
            if last is not None and count is not None and count > last:
                counted = field, *key
                self._counts[counted] = self._counts.get(counted, 0.0) + count - last
                self._emit_if_new(emit_gauge, field, key, self._counts[counted])

    def _emit_if_new(
        self, emit_gauge: EmitGauge, field: str, key: tuple[str, str], value: float | None
    ) -> None:
        device, stage = key
        name = f"memory/stage/{field}/{stage}@{device}"
        if value is not None and self._reported.get(name) != value:
            self._reported[name] = value
            emit_gauge(name, value)

    def _limit(self, module: Any, device: str, index: int) -> float | None:
        """Total memory of the device, which torch knows without creating a context."""
        if device not in self._limits:
            total = getattr(module.get_device_properties(index), "total_memory", None)
            self._limits[device] = None if total is None else float(total)
        return self._limits[device]

    def _note_peak(self, emit_gauge: EmitGauge, device: str, stage: str, allocated: float) -> bool:
        """Emit a new peak; False if there are too many stages."""
        key = device, stage
        peak = self._peaks.get(key)
        if peak is None and len(self._peaks) >= _MAX_STAGES:
            return False
        if peak is None or allocated > peak:
            self._peaks[key] = allocated
            emit_gauge(f"memory/stage_peak_bytes/{stage}@{device}", allocated)
        return True


def _emit(emit_gauge: EmitGauge, device: str, values: dict[str, float | None]) -> None:
    for field, value in values.items():
        if value is not None:
            emit_gauge(f"memory/{field}@{device}", value)
