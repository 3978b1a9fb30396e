"""The guest's gauges "memory/<field>@<device>" as rows of contract 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfx_agent.snapshot import DeviceMemory

_PREFIX = "memory/"
_FIELDS = frozenset(
    {"allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
     "largest_free_bytes", "limit_bytes", "num_alloc_retries", "num_ooms"}
)  # fmt: skip
# beginnings of what is told of each stage
_OF_STAGES = {
    "stage_peak_bytes/": "stage_peak_bytes",
    "stage/allocated_bytes/": "stage_allocated_bytes",
    "stage/reserved_bytes/": "stage_reserved_bytes",
    "stage/num_alloc_retries/": "stage_num_alloc_retries",
}


def device_rows(gauges: Mapping[str, float]) -> tuple[DeviceMemory, ...]:
    """One row per device that a gauge names, cuda:2 before cuda:10; what was not sent is None."""
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
    for begin, kept in _OF_STAGES.items():
        if field.startswith(begin):
            stages = rows.setdefault(device, {}).setdefault(kept, {})
            stages[field[len(begin) :]] = value


def _device_order(device: str) -> tuple[str, int, str]:
    kind, _, index = device.rpartition(":")
    return kind, int(index) if index.isdecimal() else 0, device
