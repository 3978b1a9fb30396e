"""The framework allocator's own figures, about once a second, for devices that are in use already.

Reads counters that torch keeps in host memory: no device is initialised, synchronised or asked, and
no peak is reset. The peak of a stage is therefore the highest of our samples in it, not the
allocator's. Gauges are "memory/<field>@<device>", "memory/stage_peak_bytes/<stage>@<device>".
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_ACCELERATORS = ("cuda", "npu", "xpu")
_MAX_STAGES = 64
_PATCH = "patch/allocator_memory"

# field -> the path in memory_stats_as_nested_dict
_FIELDS = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
    "num_alloc_retries": ("num_alloc_retries",),
    "num_ooms": ("num_ooms",),
}

EmitGauge = Callable[[str, float], None]


class MemorySampler:
    """Samples every device of this process; an accelerator that raises is left alone after that."""

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self._state: float | None = None
        self._limits: dict[str, float | None] = {}
        self._peaks: dict[tuple[str, str], float] = {}

    def sample(self, emit_gauge: EmitGauge, stage: str) -> None:
        """Emit the gauges of now; ``stage`` is the innermost open one, "" when there is none.

        Nothing is emitted in a process without a device.
        """
        num_devices = 0
        for name in _ACCELERATORS:
            module = sys.modules.get(f"torch.{name}")
            if module is None or name in self._failed:
                continue
            try:
                num_devices += self._sample_all(module, name, emit_gauge, stage)
            except Exception:  # noqa: BLE001 (never into the job: said in the gauge below)
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
            values = {field: _at(stats, path) for field, path in _FIELDS.items()}
            device = f"{name}:{index}"
            if values["reserved_bytes"] or device in self._limits:  # emptied is not unused
                num_used += 1
                values["limit_bytes"] = self._limit(module, device, index)
                _emit(emit_gauge, device, values)
                self._note_peak(emit_gauge, device, stage, values["allocated_bytes"])
        return num_used

    def _limit(self, module: Any, device: str, index: int) -> float | None:
        """What the device has; torch knows it without asking again, so no context is made."""
        if device not in self._limits:
            total = getattr(module.get_device_properties(index), "total_memory", None)
            self._limits[device] = None if total is None else float(total)
        return self._limits[device]

    def _note_peak(
        self, emit_gauge: EmitGauge, device: str, stage: str, allocated: float | None
    ) -> None:
        key = device, stage
        known = self._peaks.get(key)
        if not stage or allocated is None or (known is None and len(self._peaks) >= _MAX_STAGES):
            return
        if known is None or allocated > known:
            self._peaks[key] = allocated
            emit_gauge(f"memory/stage_peak_bytes/{stage}@{device}", allocated)


def _at(stats: Any, path: tuple[str, ...]) -> float | None:
    """None where this allocator (another torch, another backend) keeps no such figure."""
    for key in path:
        if not isinstance(stats, dict) or key not in stats:
            return None
        stats = stats[key]
    return float(stats)


def _emit(emit_gauge: EmitGauge, device: str, values: dict[str, float | None]) -> None:
    for field, value in values.items():
        if value is not None:
            emit_gauge(f"memory/{field}@{device}", value)
