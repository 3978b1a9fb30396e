"""Devices as their driver reports them, all users together, and their use in each stage."""

from collections.abc import Callable, Mapping

from dfx_agent.catalogue.spec import PER_RANK, Metric
from dfx_agent.snapshot import AgentRow, DeviceRow, RankRow, StageDevice

Numbers = dict[tuple[str, ...], float]


def _one(figure: Callable[[DeviceRow], float | None]) -> Callable[[AgentRow], Numbers]:
    """One number of each device."""

    def value(agent: AgentRow) -> Numbers:
        by_device = {(row.device,): figure(row) for row in agent.devices}
        return {device: number for device, number in by_device.items() if number is not None}

    return value


def _several(
    figures: Callable[[DeviceRow], Mapping[str, float]],
) -> Callable[[AgentRow], Numbers]:
    """Numbers of each device by name."""
    return lambda agent: {
        (row.device, name): number for row in agent.devices for name, number in figures(row).items()
    }


def _active(unit: str) -> Callable[[AgentRow], Numbers]:
    """By device and by who measures it."""
    return lambda agent: {
        (row.device, row.active_source): row.active_ratio[unit]
        for row in agent.devices
        if unit in row.active_ratio
    }


def _in_stage(figure: Callable[[StageDevice], float | None]) -> Callable[[RankRow], Numbers]:
    def value(rank: RankRow) -> Numbers:
        by_stage = {(row.stage or "idle",): figure(row) for row in rank.device_stages}
        return {stage: number for stage, number in by_stage.items() if number is not None}

    return value


_DEVICE, _ACTIVE, _STAGE = ("device",), ("device", "source"), (*PER_RANK, "stage")
_BUSY = "source says who measures it: nvml_gpm, dcgm, dcmi or amdsmi."
_OVER = "over the samples of the last 15 minutes that lay in the stage for the most part."

MEMORY_USED = Metric(
    "dfx_device_memory_used_bytes", "gauge", "bytes", _DEVICE,
    "Memory in use on the device as its driver reports it, contexts and buffers included.",
    "device",
    subject="agent", value=_one(lambda row: row.used_bytes),
)  # fmt: skip
RANK_MEMORY_USED = Metric(
    "dfx_rank_device_memory_used_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Memory of the process on the device as the driver reports it; absent if the driver "
    "lists no processes, as in most containers.", "device",
    subject="rank", value=lambda rank: rank.device_bytes,
)  # fmt: skip
RANK_DEVICE = Metric(
    "dfx_rank_device", "gauge", "", (*PER_RANK, "device"),
    "1 for each device of the machine that the rank uses.", "device",
    subject="rank", value=lambda rank: dict.fromkeys(((name,) for name in rank.device_names), 1.0),
)  # fmt: skip
UTILIZATION = Metric(
    "dfx_device_utilization_ratio", "gauge", "ratio", _DEVICE,
    "Share of the time in which anything ran on the device: 1 does not mean that its cores were "
    "busy.", "device",
    subject="agent", value=_one(lambda row: row.utilization_ratio),
)  # fmt: skip
SM_ACTIVE = Metric(
    "dfx_sm_active_ratio", "gauge", "ratio", _ACTIVE,
    f"SMs with work, mean over time and SMs (SMA); of Ascend the AI Cores. {_BUSY}", "device",
    subject="agent", value=_active("sm"),
)  # fmt: skip
SM_OCCUPANCY = Metric(
    "dfx_sm_occupancy_ratio", "gauge", "ratio", _ACTIVE,
    f"Warps resident on the SMs, of as many as there is room for. {_BUSY}", "device",
    subject="agent", value=_active("sm_occupancy"),
)  # fmt: skip
TENSOR_ACTIVE = Metric(
    "dfx_tensor_active_ratio", "gauge", "ratio", _ACTIVE,
    f"Share of the time in which tensor cores worked; of Ascend the cubes. {_BUSY}", "device",
    subject="agent", value=_active("tensor"),
)  # fmt: skip
VECTOR_ACTIVE = Metric(
    "dfx_vector_active_ratio", "gauge", "ratio", _ACTIVE,
    f"Share of the time in which vector cores worked (Ascend). {_BUSY}", "device",
    subject="agent", value=_active("vector"),
)  # fmt: skip
DRAM_ACTIVE = Metric(
    "dfx_dram_active_ratio", "gauge", "ratio", _ACTIVE,
    f"Share of the device memory's bandwidth in use. {_BUSY}", "device",
    subject="agent", value=_active("dram"),
)  # fmt: skip
POWER = Metric(
    "dfx_device_power_watts", "gauge", "", _DEVICE,
    "Power that the device draws.", "device",
    subject="agent", value=_one(lambda row: row.power_watts),
)  # fmt: skip
POWER_LIMIT = Metric(
    "dfx_device_power_limit_watts", "gauge", "", _DEVICE,
    "Power that the device is allowed to draw.", "device",
    subject="agent", value=_one(lambda row: row.power_limit_watts),
)  # fmt: skip
CLOCK = Metric(
    "dfx_device_clock_hertz", "gauge", "", (*_DEVICE, "clock"),
    "Clock of the cores (sm) and of the memory now.", "device",
    subject="agent", value=_several(lambda row: row.clock_hertz),
)  # fmt: skip
MAX_CLOCK = Metric(
    "dfx_device_max_clock_hertz", "gauge", "", (*_DEVICE, "clock"),
    "Highest clock that the device can have.", "device",
    subject="agent", value=_several(lambda row: row.max_clock_hertz),
)  # fmt: skip
TEMPERATURE = Metric(
    "dfx_device_temperature_celsius", "gauge", "", (*_DEVICE, "sensor"),
    "Temperature by sensor, in degrees Celsius.", "device",
    subject="agent", value=_several(lambda row: row.temperature_celsius),
)  # fmt: skip
THROTTLED = Metric(
    "dfx_device_throttled", "gauge", "", (*_DEVICE, "reason"),
    "1 while the device's clocks are throttled for this reason: power cap, software thermal, "
    "hardware thermal, power brake, hardware slowdown.", "device",
    subject="agent", value=_several(lambda row: dict.fromkeys(row.throttles, 1.0)),
)  # fmt: skip
MEMORY_ERRORS = Metric(
    "dfx_device_memory_errors", "counter", "", (*_DEVICE, "kind"),
    "Memory errors, corrected and uncorrected (ECC), as the driver counts them.", "device",
    subject="agent", value=_several(lambda row: row.errors_total),
)  # fmt: skip
LINK_BYTES = Metric(
    "dfx_device_link_bytes", "counter", "bytes", (*_DEVICE, "link"),
    "Data over the links of the device since the agent started, by link and direction.", "device",
    subject="agent", value=_several(lambda row: row.link_bytes_total),
)  # fmt: skip
EVENTS = Metric(
    "dfx_device_events", "counter", "", (*_DEVICE, "event"),
    "Errors that the device reported since the agent started, such as XID 79.", "device",
    subject="agent", value=_several(lambda row: {k: float(v) for k, v in row.num_events.items()}),
)  # fmt: skip
PROBLEMS = Metric(
    "dfx_device_problems", "gauge", "", _DEVICE,
    "Figures of the device that cannot be read; the agent's page lists them, and what to do.",
    "device",
    subject="agent",
    value=_one(lambda row: float(len(row.problems)) if row.is_accelerator else None),
)  # fmt: skip
STAGE_SAMPLES = Metric(
    "dfx_stage_device_samples", "gauge", "", _STAGE,
    "Samples of the rank's devices that were mostly in the stage, of the last 15 "
    "minutes; stage idle is outside all stages.", "derived",
    subject="rank", value=_in_stage(lambda row: float(row.num_samples)),
)  # fmt: skip
STAGE_UTILIZATION = Metric(
    "dfx_stage_device_utilization_ratio", "gauge", "ratio", _STAGE,
    f"dfx_device_utilization_ratio in the stage, mean {_OVER}", "derived",
    subject="rank", value=_in_stage(lambda row: row.utilization_ratio),
)  # fmt: skip
STAGE_SM_ACTIVE = Metric(
    "dfx_stage_sm_active_ratio", "gauge", "ratio", _STAGE,
    f"dfx_sm_active_ratio in the stage, mean {_OVER}", "derived",
    subject="rank", value=_in_stage(lambda row: row.sm_active_ratio),
)  # fmt: skip
STAGE_TENSOR_ACTIVE = Metric(
    "dfx_stage_tensor_active_ratio", "gauge", "ratio", _STAGE,
    f"dfx_tensor_active_ratio in the stage, mean {_OVER}", "derived",
    subject="rank", value=_in_stage(lambda row: row.tensor_active_ratio),
)  # fmt: skip
STAGE_POWER = Metric(
    "dfx_stage_device_power_watts", "gauge", "", _STAGE,
    f"Power of the rank's devices in the stage, mean {_OVER}", "derived",
    subject="rank", value=_in_stage(lambda row: row.power_watts),
)  # fmt: skip
STAGE_MEMORY = Metric(
    "dfx_stage_device_memory_used_bytes", "gauge", "bytes", _STAGE,
    "Memory in use on the rank's devices in the stage; only the rank's memory if the driver "
    f"reports it; mean {_OVER}", "derived",
    subject="rank", value=_in_stage(lambda row: row.used_bytes),
)  # fmt: skip
STAGE_CLOCK = Metric(
    "dfx_stage_device_clock_hertz", "gauge", "", _STAGE,
    f"Clock of the rank's devices in the stage, mean {_OVER}", "derived",
    subject="rank", value=_in_stage(lambda row: row.clock_hertz),
)  # fmt: skip
STAGE_THROTTLED = Metric(
    "dfx_stage_device_throttled_ratio", "gauge", "ratio", _STAGE,
    f"Share of the stage in which clocks of the rank's devices were throttled, {_OVER}", "derived",
    subject="rank", value=_in_stage(lambda row: row.throttled_ratio),
)  # fmt: skip
