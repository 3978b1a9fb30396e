"""Converts the guest's gauges named "memory/<field>@<device>" to Snapshot rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfx_agent.snapshot import DeviceMemory, HeldMemory

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
