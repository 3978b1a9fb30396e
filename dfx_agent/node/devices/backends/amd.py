"""AMD GPUs through ``amdsmi``, the Python package of ROCm; rocm-smi is not run.

The library reports how busy a GPU is, not its compute units, so that is shown as utilization.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from dfx_agent.node.devices.protocol import CounterTotals, DeviceError, DeviceQueries
from dfx_agent.snapshot import DeviceProcess, DeviceRow

DRIVER_FILES = ("/dev/kfd", "/sys/module/amdgpu")
SOURCE = "amdsmi"

_VENDOR = "amd"
_MIB, _MHZ, _KB = float(1 << 20), 1e6, 1000.0
_XGMI = 2  # amdsmi_link_type_t
_MOST_WATTS = 10_000  # a larger limit is in microwatts, as older libraries report it
# status codes: feature missing; GPU lost
_NO_SUCH_THING = {2, 3, 40, 52, 55}
_NO_PERMISSION = 10
_LOST = {12, 31, 32, 34, 54}
# flags of amdsmi_get_violation_status
_THROTTLES = {
    "active_ppt_pwr": "power cap",
    "active_socket_thrm": "hardware thermal",
    "active_hbm_thrm": "hardware thermal",
    "active_vr_thrm": "hardware thermal",
    "active_prochot_thrm": "hardware slowdown",
}


class Backend:
    """All AMD GPUs of this machine."""

    def __init__(self) -> None:
        self._smi: Any = None
        self._gpus: list[tuple[Any, CounterTotals]] = []

    def probe(self) -> bool:
        """Raises DeviceError if there is a driver that does not work."""
        if not any(map(os.path.exists, DRIVER_FILES)):
            return False
        self._smi = smi = _import_library()
        try:
            smi.amdsmi_init()
            handles = smi.amdsmi_get_processor_handles()
            self._gpus = [(handle, CounterTotals()) for handle in handles]
        except smi.AmdSmiLibraryException as error:
            raise DeviceError(f"amdsmi does not start: {_text(error)}") from None
        return bool(self._gpus)

    def read(self) -> tuple[DeviceRow, ...]:
        """All GPUs; a lost GPU has a row with the problem only."""
        return tuple(
            _row(self._smi, index, handle, totals)
            for index, (handle, totals) in enumerate(self._gpus)
        )

    def close(self) -> None:
        """Shut the library down, which releases the handles."""
        self._smi.amdsmi_shut_down()


def _import_library() -> Any:
    """Import amdsmi, which loads its library at import and prints if there is none."""
    try:
        with redirect_stdout(io.StringIO()):
            return import_module("amdsmi")
    except ModuleNotFoundError:
        raise DeviceError(
            "there is an AMD GPU driver, and amdsmi to ask it is not installed; run pip install "
            "/opt/rocm/share/amd_smi, or pip install 'dfx-agent[amd]'"
        ) from None
    except KeyError:
        raise DeviceError(
            "there is an AMD GPU driver, and libamd_smi.so is not found; set ROCM_PATH, or mount "
            "/opt/rocm into the container"
        ) from None
    except AttributeError as error:
        raise DeviceError(
            f"amdsmi does not fit the library of this ROCm ({error}); run pip install "
            "/opt/rocm/share/amd_smi"
        ) from None


def _row(smi: Any, index: int, handle: Any, totals: CounterTotals) -> DeviceRow:
    ask = DeviceQueries(smi.AmdSmiLibraryException, _describe)
    name = f"{_VENDOR}:{index}"
    try:
        return _query_row(smi, name, index, handle, totals, ask)
    except smi.AmdSmiLibraryException as error:
        problem = f"the GPU is lost ({_text(error)}); see dmesg, then reset it or drain the node"
        return DeviceRow(name, vendor=_VENDOR, place=index, problems=(problem,))


def _query_row(
    smi: Any, name: str, index: int, handle: Any, totals: CounterTotals, ask: DeviceQueries
) -> DeviceRow:
    memory = ask("memory", smi.amdsmi_get_gpu_vram_usage, handle) or {}
    busy = ask("activity", smi.amdsmi_get_gpu_activity, handle) or {}
    power = ask("power", smi.amdsmi_get_power_info, handle) or {}
    errors = ask("ECC", smi.amdsmi_get_gpu_total_ecc_count, handle) or {}
    held = ask("violations", smi.amdsmi_get_violation_status, handle) or {}
    asic = ask("name", smi.amdsmi_get_gpu_asic_info, handle) or {}
    links = ask("XGMI", _links, smi, handle) or {}
    processes = ask("processes", _processes, smi, handle) or ()
    total, used = _number(memory.get("vram_total")), _number(memory.get("vram_used"))
    dram = _ratio(busy.get("umc_activity"))
    clocks, highest = _clocks(smi, handle, ask)
    return DeviceRow(
        name,
        total_bytes=None if total is None else int(total * _MIB),
        available_bytes=_available(total, used),
        used_bytes=None if used is None else used * _MIB,
        vendor=_VENDOR,
        model=str(asic.get("market_name", "")),
        uuid=str(ask("UUID", smi.amdsmi_get_gpu_device_uuid, handle) or ""),
        place=index,
        utilization_ratio=_ratio(busy.get("gfx_activity")),
        active_ratio={} if dram is None else {"dram": dram},
        active_source="" if dram is None else SOURCE,
        power_watts=_watts(power, "socket_power", "current_socket_power", "average_socket_power"),
        power_limit_watts=_watts(power, "power_limit"),
        clock_hertz=clocks,
        max_clock_hertz=highest,
        temperature_celsius=dict(_temperatures(smi, handle, ask)),
        throttles=_throttles(held),
        errors_total=totals.totals("ecc", _errors(errors)),
        link_bytes_total=totals.totals("link", links),
        processes=tuple(processes),
        problems=ask.problems,
    )


def _available(total: float | None, used: float | None) -> int | None:
    """Free bytes; both arguments are in MiB."""
    return None if total is None or used is None else int(max(0.0, total - used) * _MIB)


def _processes(smi: Any, handle: Any) -> list[DeviceProcess]:
    rows = smi.amdsmi_get_gpu_process_list(handle)
    return [
        DeviceProcess(int(row["pid"]), _number(row["memory_usage"]["vram_mem"])) for row in rows
    ]


def _errors(counts: dict[str, Any]) -> dict[str, float | None]:
    kinds = {"corrected": "correctable_count", "uncorrected": "uncorrectable_count"}
    return {name: _number(counts.get(field)) for name, field in kinds.items()}


def _clocks(smi: Any, handle: Any, ask: DeviceQueries) -> tuple[dict[str, float], dict[str, float]]:
    """(current, highest) frequency by clock."""
    now: dict[str, float] = {}
    highest: dict[str, float] = {}
    for name, kind in (("sm", smi.AmdSmiClkType.GFX), ("memory", smi.AmdSmiClkType.MEM)):
        info = ask("clocks", smi.amdsmi_get_clock_info, handle, kind) or {}
        for hertz_by_clock, field in ((now, "clk"), (highest, "max_clk")):
            mhz = _number(info.get(field))
            if mhz is not None:
                hertz_by_clock[name] = mhz * _MHZ
    return now, highest


def _temperatures(smi: Any, handle: Any, ask: DeviceQueries) -> Iterator[tuple[str, float]]:
    kinds = smi.AmdSmiTemperatureType
    current = smi.AmdSmiTemperatureMetric.CURRENT
    for name, kind in (("gpu", kinds.HOTSPOT), ("memory", kinds.VRAM)):
        celsius = ask("temperature", smi.amdsmi_get_temp_metric, handle, kind, current)
        if celsius is not None:
            yield name, float(celsius)


def _links(smi: Any, handle: Any) -> dict[str, float | None]:
    """Bytes over all XGMI links; the driver counts kilobytes."""
    metrics, totals = smi.amdsmi_get_link_metrics(handle), dict[str, float | None]()
    links = [link for link in metrics.get("links", ()) if link["link_type"] == _XGMI]
    links = links[: metrics.get("num_links", 0)]
    for name, field in (("xgmi_rx", "read"), ("xgmi_tx", "write")):
        counts = [_number(link[field]) for link in links]
        if counts and None not in counts:
            totals[name] = sum(count for count in counts if count is not None) * _KB
    return totals


def _watts(power: dict[str, Any], *fields: str) -> float | None:
    watts = next((w for field in fields if (w := _number(power.get(field)))), None)
    return watts / 1e6 if watts is not None and watts > _MOST_WATTS else watts


def _throttles(held: dict[str, Any]) -> tuple[str, ...]:
    """Reasons whose flag is set; a flag may be the text "N/A"."""
    return tuple(dict.fromkeys(why for flag, why in _THROTTLES.items() if held.get(flag) is True))


def _ratio(percent: Any) -> float | None:
    value = _number(percent)
    return None if value is None or not 0 <= value <= 100 else value / 100


def _number(value: Any) -> float | None:
    """None for "N/A", and for the largest integers, which mean the same."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return None if value in {0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF} else float(value)


def _describe(error: Exception) -> str:
    """Text for an error of one query; "" if the GPU lacks the feature."""
    code = getattr(error, "err_code", None)
    if code in _LOST:
        raise error
    if code in _NO_SUCH_THING:
        return ""
    if code == _NO_PERMISSION:
        return "permission refused; add the agent's user to the groups render and video"
    return _text(error)


def _text(error: Any) -> str:
    return str(getattr(error, "err_info", error))
