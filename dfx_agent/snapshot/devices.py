"""Contract 2: a device of this machine as it says of itself, whoever uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that has memory on a device. ``pid`` as the driver says it, mostly the host's."""

    pid: int
    used_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """Something that a device reported once, as in "XID 79"."""

    device: str
    name: str
    time_seconds: float
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class HostUse:
    """What the machine does beside its memory; totals are since its boot.

    ``stalled_ratio``: resource -> "some" or "full" -> share of the last 10 s in which tasks stood
    still for it (PSI). ``limit_bytes`` and ``cpu_limit`` (processors) are of the control group that
    the agent is in, None where there is none.
    """

    cpu_ratio: float | None = None
    num_major_faults: float | None = None
    num_oom_kills: float | None = None
    shm_total_bytes: float | None = None
    shm_used_bytes: float | None = None
    limit_bytes: float | None = None
    limit_used_bytes: float | None = None
    cpu_limit: float | None = None
    cpu_throttled_seconds: float | None = None
    stalled_ratio: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """``device`` is its name on this machine: "host", "nvidia:3", "nvidia:3/mig:0", "ascend:7".

    None, or a name that is missing, is what it does not tell. ``vendor`` is "" of the host;
    ``place`` is its index among those of its vendor. ``instance``: of a MIG part, GPU instance and
    compute instance, as in "3/0".
    ``available_bytes``: what it could still give out. ``utilization_ratio``: share of time in which
    anything ran on it, which is not how busy its cores were: that is ``active_ratio`` by unit
    ("sm", "tensor", "vector", "dram", "sm_occupancy"), as ``active_source`` measures it.
    ``clock_hertz`` and ``max_clock_hertz`` by clock ("sm", "memory"), ``temperature_celsius`` by
    sensor. ``throttles``: why its clocks are held down now. ``errors_total``: memory errors,
    "corrected" and "uncorrected"; ``link_bytes_total`` by link and direction ("pcie_rx").
    ``events``: the newest, oldest first; ``num_events`` by name since the agent came.
    ``problems``: what cannot be read of it, and what to do, one line each.
    """

    device: str
    total_bytes: int | None = None
    available_bytes: int | None = None
    vendor: str = ""
    model: str = ""
    uuid: str = ""
    place: int | None = None
    used_bytes: float | None = None
    utilization_ratio: float | None = None
    active_ratio: Mapping[str, float] = field(default_factory=dict)
    active_source: str = ""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    clock_hertz: Mapping[str, float] = field(default_factory=dict)
    max_clock_hertz: Mapping[str, float] = field(default_factory=dict)
    temperature_celsius: Mapping[str, float] = field(default_factory=dict)
    throttles: tuple[str, ...] = ()
    errors_total: Mapping[str, float] = field(default_factory=dict)
    link_bytes_total: Mapping[str, float] = field(default_factory=dict)
    health: str = ""
    instance: str = ""
    events: tuple[DeviceEvent, ...] = ()
    num_events: Mapping[str, int] = field(default_factory=dict)
    processes: tuple[DeviceProcess, ...] = ()
    problems: tuple[str, ...] = ()
    host: HostUse | None = None

    @property
    def is_accelerator(self) -> bool:
        return bool(self.vendor)


@dataclass(frozen=True, slots=True)
class StageDevice:
    """What the devices of one rank did while it was in one stage, waits in it included.

    Means over ``seconds`` of time in the ``num_samples`` samples that lay in the stage for the
    most part, of the last quarter of an hour; None is what was in none of them. ``stage`` is ""
    for the time outside all stages.
    """

    stage: str
    num_samples: int
    seconds: float
    utilization_ratio: float | None = None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    power_watts: float | None = None
    used_bytes: float | None = None
    clock_hertz: float | None = None
    throttled_ratio: float | None = None


def device_text(device: str) -> str:
    """As people call it: "GPU 3", "NPU 7", "GPU 3 (MIG 0)"."""
    name, _, part = device.partition("/")
    vendor, _, index = name.partition(":")
    if not index:
        return device
    word = f"{'NPU' if vendor == 'ascend' else 'GPU'} {index}"
    return f"{word} (MIG {part.removeprefix('mig:')})" if part else word


def stage_text(row: StageDevice) -> str:
    """As in "rollout: SM active 8 %, 41.2 GiB, 310 W"; "" where nothing was told."""
    busy = ("SM active", row.sm_active_ratio)
    if row.sm_active_ratio is None:
        busy = ("in use", row.utilization_ratio)
    told = [f"{name} {ratio:.0%}" for name, ratio in (busy,) if ratio is not None]
    if row.tensor_active_ratio is not None:
        told.append(f"tensor cores {row.tensor_active_ratio:.0%}")
    if row.used_bytes is not None:
        told.append(f"{row.used_bytes / 2**30:.1f} GiB")
    if row.power_watts is not None:
        told.append(f"{row.power_watts:.0f} W")
    if row.throttled_ratio:
        told.append(f"clocks held down {row.throttled_ratio:.0%} of it")
    return f"{row.stage or 'outside all stages'}: {', '.join(told)}" if told else ""
