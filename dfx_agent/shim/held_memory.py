"""What allocator and process hold where states come to a device, and where they go off it.

Asked in the job's own thread, at the ends of stages that bring states or take them away, and
nowhere else: 0.1 ms beside moving gigabytes. It reads counters that torch keeps in host memory, and
/proc/self/statm: no device is initialised, synchronised or asked, and no peak is reset.

The points have ROLL's names. Gauges are "memory/at/<point>/<field>/<stage>@<device>", of the
process itself with the device "host".
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from typing import Any

ACCELERATORS = ("cuda", "npu", "xpu")
# before and after; "offload" in a point: the states are off the device there
POINTS = {"onload": ("start/offload", "start/onload"), "offload": ("end/onload", "end/offload")}
HOST = "host"

_FIELDS = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
}
_EVERY_SECONDS = 0.05  # who moves states more often is told of now and then
_MAX_STAGES = 32

EmitGauge = Callable[[str, float], None]
_told_at: dict[tuple[str, str], float] = {}
_in_use: set[str] = set()


def tell_held(emit_gauge: EmitGauge, point: str, stage: str) -> None:
    """Now, at this point of a stage; may raise."""
    key, now = (point, stage), time.monotonic()
    before = _told_at.get(key)
    if before is None and len({known for _, known in _told_at} | {stage}) > _MAX_STAGES:
        return
    if before is not None and now - before < _EVERY_SECONDS:
        return
    _told_at[key] = now
    for name in ACCELERATORS:
        module = sys.modules.get(f"torch.{name}")
        if module is not None and module.is_initialized():
            _tell_devices(emit_gauge, module, name, (point, stage))
    virtual, resident = _of_process()
    emit_gauge(f"memory/at/{point}/resident_bytes/{stage}@{HOST}", resident)
    emit_gauge(f"memory/at/{point}/virtual_bytes/{stage}@{HOST}", virtual)


def _tell_devices(emit_gauge: EmitGauge, module: Any, name: str, at: tuple[str, str]) -> None:
    """Of those that the allocator has used by now: emptied is not unused."""
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
    """None where this allocator (another torch, another backend) keeps no such figure."""
    for key in path:
        if not isinstance(stats, dict) or key not in stats:
            return None
        stats = stats[key]
    return float(stats)


def _of_process() -> tuple[float, float]:
    """Virtual and resident bytes, without the device's."""
    with open("/proc/self/statm", "rb", buffering=0) as statm:
        virtual, resident = statm.read().split(None, 2)[:2]
    return float(int(virtual) * mmap.PAGESIZE), float(int(resident) * mmap.PAGESIZE)
