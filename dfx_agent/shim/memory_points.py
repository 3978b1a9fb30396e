"""Records memory around onloading and offloading of model states.

Memory is read in the job's own thread at the begin and end of such stages: 0.1 ms next to moving
gigabytes. The sources are counters that torch has in host memory, and /proc/self/statm. No device
is initialised, synchronised or queried, and no peak is reset.

The points have ROLL's names. Gauges are called "memory/at/<point>/<field>/<stage>@<device>"; the
device "host" means the process itself.
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from typing import Any

ACCELERATORS = ("cuda", "npu", "xpu")
# points before and after the stage; at a point with "offload" the states are off the device
POINTS = {"onload": ("start/offload", "start/onload"), "offload": ("end/onload", "end/offload")}
HOST = "host"

_FIELDS = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
}
_EVERY_SECONDS = 0.05  # a point that occurs more often is recorded now and then
_MAX_STAGES = 32

EmitGauge = Callable[[str, float], None]
_recorded_at: dict[tuple[str, str], float] = {}
_in_use: set[str] = set()


def record_memory(emit_gauge: EmitGauge, point: str, stage: str) -> None:
    """Record the memory at this point of a stage; may raise."""
    key, now = (point, stage), time.monotonic()
    before = _recorded_at.get(key)
    if before is None and len({name for _, name in _recorded_at} | {stage}) > _MAX_STAGES:
        return
    if before is not None and now - before < _EVERY_SECONDS:
        return
    _recorded_at[key] = now
    for name in ACCELERATORS:
        module = sys.modules.get(f"torch.{name}")
        if module is not None and module.is_initialized():
            _record_devices(emit_gauge, module, name, (point, stage))
    virtual, resident = _of_process()
    emit_gauge(f"memory/at/{point}/resident_bytes/{stage}@{HOST}", resident)
    emit_gauge(f"memory/at/{point}/virtual_bytes/{stage}@{HOST}", virtual)


def _record_devices(emit_gauge: EmitGauge, module: Any, name: str, at: tuple[str, str]) -> None:
    """Record the devices that the allocator has ever used; an emptied one is still reported."""
    point, stage = at
    for index in range(module.device_count()):
        stats, device = module.memory_stats_as_nested_dict(index), f"{name}:{index}"
        values = {field: figure_at(stats, path) for field, path in _FIELDS.items()}
        if values["reserved_bytes"]:
            _in_use.add(device)
        for field, value in values.items():
            if device in _in_use and value is not None:
                emit_gauge(f"memory/at/{point}/{field}/{stage}@{device}", value)


def figure_at(stats: Any, path: tuple[str, ...]) -> float | None:
    """One number of the allocator's statistics; None if this version of torch does not have it."""
    for key in path:
        if not isinstance(stats, dict) or key not in stats:
            return None
        stats = stats[key]
    return float(stats)


def _of_process() -> tuple[float, float]:
    """Virtual and resident bytes of the process, without device memory."""
    with open("/proc/self/statm", "rb", buffering=0) as statm:
        virtual, resident = statm.read().split(None, 2)[:2]
    return float(int(virtual) * mmap.PAGESIZE), float(int(resident) * mmap.PAGESIZE)
