"""The guest's gauges "memory/<field>@<device>" as rows of contract 2."""

from __future__ import annotations

from collections.abc import Mapping

from dfx_agent.snapshot import DeviceMemory

_PREFIX = "memory/"
_STAGE_PEAK = "stage_peak_bytes/"
_FIELDS = frozenset(
    {"allocated_bytes", "reserved_bytes", "limit_bytes", "num_alloc_retries", "num_ooms"}
)


def device_rows(gauges: Mapping[str, float]) -> tuple[DeviceMemory, ...]:
    """One row per device that a gauge names, cuda:2 before cuda:10; what was not sent is None."""
    fields: dict[str, dict[str, float]] = {}
    peaks: dict[str, dict[str, float]] = {}
    for name, value in gauges.items():
        if name.startswith(_PREFIX):
            field, _, device = name[len(_PREFIX) :].rpartition("@")
            if field in _FIELDS:
                fields.setdefault(device, {})[field] = value
            elif field.startswith(_STAGE_PEAK):
                peaks.setdefault(device, {})[field[len(_STAGE_PEAK) :]] = value
    return tuple(
        DeviceMemory(device, **fields.get(device, {}), stage_peak_bytes=peaks.get(device, {}))
        for device in sorted({*fields, *peaks}, key=_device_order)
    )


def _device_order(device: str) -> tuple[str, int, str]:
    kind, _, index = device.rpartition(":")
    return kind, int(index) if index.isdecimal() else 0, device
