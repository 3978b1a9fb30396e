"""Contract 2: the devices of this machine, as their drivers report them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that has memory on a device."""

    pid: int
    """As the driver reports it, usually the host's pid."""
    used_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """An event that a device reported, for example "XID 79"."""

    device: str
    name: str
    time_seconds: float
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class HostUse:
    """Use of the machine apart from its memory; totals count since the boot."""

    cpu_ratio: float | None = None
    num_major_faults: float | None = None
    num_oom_kills: float | None = None
    shm_total_bytes: float | None = None
    shm_used_bytes: float | None = None
    limit_bytes: float | None = None
    """Memory limit of the agent's control group; None if there is none."""
    limit_used_bytes: float | None = None
    cpu_limit: float | None = None
    """CPUs that the agent's control group may use; None if there is no limit."""
    cpu_throttled_seconds: float | None = None
    stalled_ratio: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Resource -> "some" or "full" -> share of the last 10 s in which tasks stalled (PSI)."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device. None, or a missing key, means that the device does not report the value."""

    device: str
    """Name on this machine: "host", "nvidia:3", "nvidia:3/mig:0", "ascend:7"."""
    total_bytes: int | None = None
    available_bytes: int | None = None
    """Bytes that can still be allocated."""
    vendor: str = ""
    """"" for the host."""
    model: str = ""
    uuid: str = ""
    place: int | None = None
    """Index among the devices of its vendor."""
    used_bytes: float | None = None
    utilization_ratio: float | None = None
    """Share of time in which anything ran on it; does not say how busy its cores were."""
    active_ratio: Mapping[str, float] = field(default_factory=dict)
    """Activity by unit ("sm", "tensor", "vector", "dram", "sm_occupancy")."""
    active_source: str = ""
    """How ``active_ratio`` is measured."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    clock_hertz: Mapping[str, float] = field(default_factory=dict)
    """By clock: "sm", "memory"."""
    max_clock_hertz: Mapping[str, float] = field(default_factory=dict)
    temperature_celsius: Mapping[str, float] = field(default_factory=dict)
    """By sensor."""
    throttles: tuple[str, ...] = ()
    """Why its clocks are reduced now."""
    errors_total: Mapping[str, float] = field(default_factory=dict)
    """Memory errors: "corrected" and "uncorrected"."""
    link_bytes_total: Mapping[str, float] = field(default_factory=dict)
    """By link and direction, for example "pcie_rx"."""
    health: str = ""
    instance: str = ""
    """Of a MIG part: GPU instance and compute instance, for example "3/0"."""
    events: tuple[DeviceEvent, ...] = ()
    """The latest events, oldest first."""
    num_events: Mapping[str, int] = field(default_factory=dict)
    """By name, since the agent started."""
    processes: tuple[DeviceProcess, ...] = ()
    problems: tuple[str, ...] = ()
    """What cannot be read of it, and what to do, one line each."""
    host: HostUse | None = None

    @property
    def is_accelerator(self) -> bool:
        return bool(self.vendor)


@dataclass(frozen=True, slots=True)
class StageDevice:
    """Device use of one rank in one stage, including waits, over the last 15 minutes.

    Values are means over time. None: no sample had the value.
    """

    stage: str
    """"" for the time outside all stages."""
    num_samples: int
    """Samples that lie mostly in the stage."""
    seconds: float
    """Time that those samples cover."""
    utilization_ratio: float | None = None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    power_watts: float | None = None
    used_bytes: float | None = None
    clock_hertz: float | None = None
    throttled_ratio: float | None = None


def device_text(device: str) -> str:
    """For people: "GPU 3", "NPU 7", "GPU 3 (MIG 0)"."""
    name, _, part = device.partition("/")
    vendor, _, index = name.partition(":")
    if not index:
        return device
    word = f"{'NPU' if vendor == 'ascend' else 'GPU'} {index}"
    return f"{word} (MIG {part.removeprefix('mig:')})" if part else word


def stage_text(row: StageDevice) -> str:
    """For example "rollout: SM active 8 %, 41.2 GiB, 310 W"; "" without values."""
    busy = ("SM active", row.sm_active_ratio)
    if row.sm_active_ratio is None:
        busy = ("in use", row.utilization_ratio)
    parts = [f"{name} {ratio:.0%}" for name, ratio in (busy,) if ratio is not None]
    if row.tensor_active_ratio is not None:
        parts.append(f"tensor cores {row.tensor_active_ratio:.0%}")
    if row.used_bytes is not None:
        parts.append(f"{row.used_bytes / 2**30:.1f} GiB")
    if row.power_watts is not None:
        parts.append(f"{row.power_watts:.0f} W")
    if row.throttled_ratio:
        parts.append(f"clocks held down {row.throttled_ratio:.0%} of it")
    return f"{row.stage or 'outside all stages'}: {', '.join(parts)}" if parts else ""
