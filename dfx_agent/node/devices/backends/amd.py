"""AMD GPUs by ``amdsmi``, the Python package that comes with ROCm: no rocm-smi is run.

It knows how busy a GPU was, not how busy its compute units were: that is told as utilisation.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from dfx_agent.node.devices.protocol import Asking, DeviceError, Growing
from dfx_agent.snapshot import DeviceProcess, DeviceRow

DRIVER_FILES = ("/dev/kfd", "/sys/module/amdgpu")
SOURCE = "amdsmi"

_VENDOR = "amd"
_MIB, _MHZ, _KB = float(1 << 20), 1e6, 1000.0
_XGMI = 2  # amdsmi_link_type_t
_MOST_WATTS = 10_000  # a limit above that is in microwatts, as older libraries tell it
# status codes: what a GPU has not got, and those of a GPU that is gone
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
    """All GPUs that the driver shows here."""

    def __init__(self) -> None:
        self._smi: Any = None
        self._gpus: list[tuple[Any, Growing]] = []

    def probe(self) -> bool:
        """DeviceError where there is a driver that cannot be asked."""
        if not any(map(os.path.exists, DRIVER_FILES)):
            return False
        self._smi = smi = _imported()
        try:
            smi.amdsmi_init()
            self._gpus = [(handle, Growing()) for handle in smi.amdsmi_get_processor_handles()]
        except smi.AmdSmiLibraryException as error:
            raise DeviceError(f"amdsmi does not start: {_text(error)}") from None
        return bool(self._gpus)

    def read(self) -> tuple[DeviceRow, ...]:
        """Each GPU; of one that is lost only that it is."""
        return tuple(
            _row(self._smi, place, handle, growing)
            for place, (handle, growing) in enumerate(self._gpus)
        )

    def close(self) -> None:
        """Handles are the library's."""
        self._smi.amdsmi_shut_down()


def _imported() -> Any:
    """It loads its library when it is imported, and prints where there is none."""
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


def _row(smi: Any, place: int, handle: Any, growing: Growing) -> DeviceRow:
    ask = Asking(smi.AmdSmiLibraryException, _line)
    name = f"{_VENDOR}:{place}"
    try:
        return _asked(smi, name, place, handle, growing, ask)
    except smi.AmdSmiLibraryException as error:
        problem = f"the GPU is lost ({_text(error)}); see dmesg, then reset it or drain the node"
        return DeviceRow(name, vendor=_VENDOR, place=place, problems=(problem,))


def _asked(
    smi: Any, name: str, place: int, handle: Any, growing: Growing, ask: Asking
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
        place=place,
        utilization_ratio=_ratio(busy.get("gfx_activity")),
        active_ratio={} if dram is None else {"dram": dram},
        active_source="" if dram is None else SOURCE,
        power_watts=_watts(power, "socket_power", "current_socket_power", "average_socket_power"),
        power_limit_watts=_watts(power, "power_limit"),
        clock_hertz=clocks,
        max_clock_hertz=highest,
        temperature_celsius=dict(_temperatures(smi, handle, ask)),
        throttles=_throttles(held),
        errors_total=growing.totals("ecc", _errors(errors)),
        link_bytes_total=growing.totals("link", links),
        processes=tuple(processes),
        problems=ask.problems,
    )


def _available(total: float | None, used: float | None) -> int | None:
    """In bytes, of MiB."""
    return None if total is None or used is None else int(max(0.0, total - used) * _MIB)


def _processes(smi: Any, handle: Any) -> list[DeviceProcess]:
    told = smi.amdsmi_get_gpu_process_list(handle)
    return [DeviceProcess(int(p["pid"]), _number(p["memory_usage"]["vram_mem"])) for p in told]


def _errors(told: dict[str, Any]) -> dict[str, float | None]:
    kinds = {"corrected": "correctable_count", "uncorrected": "uncorrectable_count"}
    return {name: _number(told.get(field)) for name, field in kinds.items()}


def _clocks(smi: Any, handle: Any, ask: Asking) -> tuple[dict[str, float], dict[str, float]]:
    """(now, highest) by clock."""
    now: dict[str, float] = {}
    highest: dict[str, float] = {}
    for name, kind in (("sm", smi.AmdSmiClkType.GFX), ("memory", smi.AmdSmiClkType.MEM)):
        told = ask("clocks", smi.amdsmi_get_clock_info, handle, kind) or {}
        for found, field in ((now, "clk"), (highest, "max_clk")):
            mhz = _number(told.get(field))
            if mhz is not None:
                found[name] = mhz * _MHZ
    return now, highest


def _temperatures(smi: Any, handle: Any, ask: Asking) -> Iterator[tuple[str, float]]:
    kinds = smi.AmdSmiTemperatureType
    current = smi.AmdSmiTemperatureMetric.CURRENT
    for name, kind in (("gpu", kinds.HOTSPOT), ("memory", kinds.VRAM)):
        told = ask("temperature", smi.amdsmi_get_temp_metric, handle, kind, current)
        if told is not None:
            yield name, float(told)


def _links(smi: Any, handle: Any) -> dict[str, float | None]:
    """Sums over the XGMI links; the driver counts kilobytes."""
    told, found = smi.amdsmi_get_link_metrics(handle), dict[str, float | None]()
    links = [link for link in told.get("links", ()) if link["link_type"] == _XGMI]
    links = links[: told.get("num_links", 0)]
    for name, field in (("xgmi_rx", "read"), ("xgmi_tx", "write")):
        counts = [_number(link[field]) for link in links]
        if counts and None not in counts:
            found[name] = sum(c for c in counts if c is not None) * _KB
    return found


def _watts(power: dict[str, Any], *fields: str) -> float | None:
    told = next((w for field in fields if (w := _number(power.get(field)))), None)
    return told / 1e6 if told is not None and told > _MOST_WATTS else told


def _throttles(held: dict[str, Any]) -> tuple[str, ...]:
    """Of flags that are set; "N/A" is a text."""
    return tuple(dict.fromkeys(why for flag, why in _THROTTLES.items() if held.get(flag) is True))


def _ratio(percent: Any) -> float | None:
    told = _number(percent)
    return None if told is None or not 0 <= told <= 100 else told / 100


def _number(told: Any) -> float | None:
    """None for "N/A", and for the largest numbers, which say the same."""
    if isinstance(told, bool) or not isinstance(told, (int, float)):
        return None
    return None if told in {0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF} else float(told)


def _line(error: Exception) -> str:
    """Of what one question failed with; "" where the GPU has no such thing."""
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
