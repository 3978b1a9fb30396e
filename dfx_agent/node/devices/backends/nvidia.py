"""NVIDIA GPUs through NVML (``nvidia-ml-py``), without nvidia-smi and DCGM.

SM activity (SMA), tensor activity and similar values come from GPM on Hopper and newer, and from a
running dcgm-exporter below Hopper. Without an exporter there is only the share of time in which any
kernel ran, which has its own name.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from dfx_agent.node.devices import dcgm, gpm, nvml_words
from dfx_agent.node.devices.protocol import CounterTotals, DeviceError, DeviceQueries
from dfx_agent.snapshot import DeviceEvent, DeviceProcess, DeviceRow

DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version")

_VENDOR = "nvidia"
_MAX_EVENTS = 16
_MHZ = 1e6
_KIB = 1024.0
_ALL_LINKS = 0xFFFFFFFF
# fields of nvmlDeviceGetFieldValues: (number, scope), name, bytes per unit
_FIELDS = (
    ((138, _ALL_LINKS), "nvlink_tx", _KIB),
    ((139, _ALL_LINKS), "nvlink_rx", _KIB),
    ((197, 0), "pcie_tx", 1.0),
    ((198, 0), "pcie_rx", 1.0),
)
_CLOCKS = {"sm": 1, "memory": 2}  # nvmlClockType_t
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_XID_BIT = 0x8  # nvmlEventTypeXidCriticalError
_TIMEOUT = 10  # NVML_ERROR_TIMEOUT


class Backend:
    """All NVIDIA GPUs of this machine, and their MIG parts."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpus: dict[int, _Gpu] = {}
        self._exporter = dcgm.Exporter()
        self._events: Any = None

    def probe(self) -> bool:
        """Raises DeviceError if there is a driver that does not work."""
        is_here = any(map(os.path.exists, DRIVER_FILES))
        if not (is_here or _has_library()):
            return False  # the binding is large, so it is not imported without a GPU
        self._nvml = _import_binding()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            if not is_here:
                return False
            raise DeviceError(_no_library(error)) from None
        self._find()
        return bool(self._gpus)

    def read(self) -> tuple[DeviceRow, ...]:
        """All GPUs, each followed by its MIG parts."""
        self._find()
        self._read_events()
        busy = self._from_dcgm() if any(not gpu.has_gpm for gpu in self._gpus.values()) else {}
        return tuple(row for gpu in self._gpus.values() for row in gpu.rows(busy))

    def close(self) -> None:
        """Release samples and the event set, which belong to the library."""
        for gpu in self._gpus.values():
            gpu.close()
        self._nvml.nvmlShutdown()

    def _find(self) -> None:
        """Add new GPUs; a GPU that is gone reports that when it is queried."""
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            before = self._gpus.get(index)
            if before is not None and not before.is_lost:
                continue
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError as error:
                self._gpus.setdefault(index, _Gpu(nvml, None, index)).set_lost(error)
                continue
            gpu = self._gpus[index] = _Gpu(nvml, handle, index, before)
            self._listen(gpu)

    def _listen(self, gpu: _Gpu) -> None:
        """Register for XIDs, if the GPU has events."""
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceGetSupportedEventTypes(gpu.handle) & _XID_BIT:
                if self._events is None:
                    self._events = nvml.nvmlEventSetCreate()
                nvml.nvmlDeviceRegisterEvents(gpu.handle, _XID_BIT, self._events)
        except (nvml.NVMLError, AttributeError):
            return

    def _read_events(self) -> None:
        """Read all events since the last call, without waiting."""
        nvml = self._nvml
        for _ in range(_MAX_EVENTS if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError as error:
                if error.value != _TIMEOUT:
                    self._register_again()
                return
            gpu = self._gpu_of(event.device)
            if event.eventType & _XID_BIT and gpu is not None:
                gpu.note_xid(int(event.eventData))

    def _register_again(self) -> None:
        """A set fails as a whole when one of its GPUs is lost: make a new one of the others."""
        nvml, events, self._events = self._nvml, self._events, None
        with suppress(nvml.NVMLError, AttributeError):
            nvml.nvmlEventSetFree(events)
        for gpu in self._gpus.values():
            if gpu.handle is not None and not gpu.is_lost:
                self._listen(gpu)

    def _gpu_of(self, handle: Any) -> _Gpu | None:
        """Find a GPU by its handle, because a lost GPU answers no query; else by its index."""
        address = ctypes.cast(handle, ctypes.c_void_p).value
        for gpu in self._gpus.values():
            if ctypes.cast(gpu.handle, ctypes.c_void_p).value == address:
                return gpu
        with suppress(self._nvml.NVMLError):
            return self._gpus.get(int(self._nvml.nvmlDeviceGetIndex(handle)))
        return None

    def _from_dcgm(self) -> dict[str, dict[str, float]]:
        ratios = self._exporter.active_ratio()
        for gpu in self._gpus.values():
            gpu.dcgm_problem = self._exporter.problem
        return ratios


class _Gpu:
    """One GPU over several reads. ``handle``: None if the driver provides none."""

    def __init__(self, nvml: Any, handle: Any, index: int, before: _Gpu | None = None) -> None:
        self._nvml, self.handle, self.index = nvml, handle, index
        self.name = f"{_VENDOR}:{index}"
        self.is_lost = False
        self.dcgm_problem = ""
        self._lost_line = self.model = self.uuid = ""
        self.totals = CounterTotals()
        self.xids: deque[DeviceEvent] = deque(maxlen=_MAX_EVENTS)
        self.num_xids: Counter[str] = Counter()
        if before is not None:
            self.totals, self.xids = before.totals, before.xids
            self.num_xids = before.num_xids
            self.model, self.uuid = before.model, before.uuid
        self._sampler = gpm.Sampler(nvml, handle)
        self._parts: dict[int, gpm.Sampler] = {}
        self.has_gpm = True  # until the GPU reports that it has none
        self._asking = DeviceQueries(nvml.NVMLError, self._describe)

    def set_lost(self, error: Any) -> None:
        self.is_lost = True
        self._lost_line = nvml_words.describe_error(error.value, str(error)) or str(error)

    def note_xid(self, number: int) -> None:
        name = f"XID {number}"
        meaning = nvml_words.xid_meaning(number)
        self.xids.append(DeviceEvent(self.name, name, time.time(), meaning))
        self.num_xids[name] += 1

    def close(self) -> None:
        for sampler in (self._sampler, *self._parts.values()):
            sampler.close()

    def rows(self, busy: dict[str, dict[str, float]]) -> Iterator[DeviceRow]:
        """The GPU and its MIG parts; a lost GPU has a row with its identity and problem only."""
        try:
            if not self.is_lost:
                yield from [self._row(busy), *self._part_rows()]  # a late query may find it lost
        except self._nvml.NVMLError as error:
            self.set_lost(error)
        if self.is_lost:
            yield DeviceRow(
                self.name, vendor=_VENDOR, model=self.model, uuid=self.uuid, place=self.index,
                events=tuple(self.xids), num_events=dict(self.num_xids),
                problems=(self._lost_line,),
            )  # fmt: skip

    def _describe(self, error: Exception) -> str:
        code = int(getattr(error, "value", 999))
        if nvml_words.is_lost(code):
            raise error
        return nvml_words.describe_error(code, str(error))

    def _row(self, busy: dict[str, dict[str, float]]) -> DeviceRow:
        nvml, handle = self._nvml, self.handle
        ask = self._asking = DeviceQueries(nvml.NVMLError, self._describe)
        memory = ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle)
        used = ask("utilisation", nvml.nvmlDeviceGetUtilizationRates, handle)
        power = ask("power", nvml.nvmlDeviceGetPowerUsage, handle)
        cap = ask("power limit", nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        heat = ask("temperature", nvml.nvmlDeviceGetTemperature, handle, 0)
        self.uuid = uuid = text(ask("UUID", nvml.nvmlDeviceGetUUID, handle)) or self.uuid
        self.model = text(ask("name", nvml.nvmlDeviceGetName, handle)) or self.model
        active, source = self._active(uuid, busy)
        links = dict(self._links())
        return DeviceRow(
            self.name,
            total_bytes=None if memory is None else int(memory.total),
            available_bytes=_free(memory),
            used_bytes=None if memory is None else float(memory.used),
            vendor=_VENDOR,
            model=self.model,
            uuid=uuid,
            place=self.index,
            utilization_ratio=None if used is None else gpm.as_ratio(used.gpu),
            active_ratio=active,
            active_source=source if active else "",
            power_watts=None if power is None else power / 1e3,
            power_limit_watts=None if cap is None else cap / 1e3,
            clock_hertz=self._clocks(nvml.nvmlDeviceGetClockInfo),
            max_clock_hertz=self._clocks(nvml.nvmlDeviceGetMaxClockInfo),
            temperature_celsius={} if heat is None else {"gpu": float(heat)},
            throttles=nvml_words.throttle_names(self._clock_reasons()),
            errors_total=self.totals.totals("ecc", self._errors()),
            link_bytes_total=self.totals.totals("link", links),
            events=tuple(self.xids),
            num_events=dict(self.num_xids),
            processes=self._processes(handle),
            problems=(*ask.problems, *filter(None, (self.dcgm_problem,))),
        )

    def _active(self, uuid: str, busy: dict[str, dict[str, float]]) -> tuple[dict[str, float], str]:
        """From GPM, else from the exporter."""
        ratios = self._asking("SM activity (GPM)", self._sampler.active_ratio)
        self.has_gpm = self._sampler.is_supported
        if ratios or self.has_gpm:
            return ratios or {}, gpm.SOURCE
        return busy.get(uuid, {}), dcgm.SOURCE

    def _clocks(self, question: Any) -> dict[str, float]:
        mhz_by_clock = {
            name: self._asking("clocks", question, self.handle, number)
            for name, number in _CLOCKS.items()
        }
        return {name: mhz * _MHZ for name, mhz in mhz_by_clock.items() if mhz is not None}

    def _clock_reasons(self) -> int:
        """Bits of the current reasons; drivers before 535 only have the older function."""
        nvml, bits = self._nvml, None
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            question = getattr(nvml, name, None)
            if bits is None and question is not None:
                bits = self._asking("clock reasons", question, self.handle)
        return int(bits or 0)

    def _errors(self) -> dict[str, float | None]:
        count = self._nvml.nvmlDeviceGetTotalEccErrors
        return {
            name: self._asking("ECC", count, self.handle, kind, _VOLATILE)
            for name, kind in (("corrected", _CORRECTED), ("uncorrected", _UNCORRECTED))
        }

    def _links(self) -> Iterator[tuple[str, float]]:
        fields = [field for field, _, _ in _FIELDS]
        ask, nvml = self._asking, self._nvml
        values = ask("links", nvml.nvmlDeviceGetFieldValues, self.handle, fields)
        for value, (_, name, unit_bytes) in zip(values or (), _FIELDS, strict=False):
            if value.nvmlReturn == 0:
                yield name, _number(value) * unit_bytes

    def _processes(self, handle: Any) -> tuple[DeviceProcess, ...]:
        rows = self._asking("processes", self._running, handle)
        return tuple(
            DeviceProcess(row.pid, None if row.usedGpuMemory is None else float(row.usedGpuMemory))
            for row in rows or ()
        )

    def _running(self, handle: Any) -> Any:
        """Running processes; drivers before 510 only have the older function."""
        nvml = self._nvml
        is_older = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError_FunctionNotFound)
        try:
            return nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except is_older:
            return nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)

    def _part_rows(self) -> Iterator[DeviceRow]:
        """MIG parts: memory, processes, and activity if the GPU has GPM."""
        nvml, ask = self._nvml, self._asking
        mode = ask("MIG", nvml.nvmlDeviceGetMigMode, self.handle)
        if not mode or not mode[0]:
            return
        for number in range(ask("MIG", nvml.nvmlDeviceGetMaxMigDeviceCount, self.handle) or 0):
            part = ask("MIG", nvml.nvmlDeviceGetMigDeviceHandleByIndex, self.handle, number)
            if part is not None:
                yield self._part_row(number, part)

    def _part_row(self, number: int, part: Any) -> DeviceRow:
        nvml = self._nvml
        ask = self._asking = DeviceQueries(nvml.NVMLError, self._describe)
        memory = ask("memory", nvml.nvmlDeviceGetMemoryInfo, part)
        instance = ask("GPU instance", nvml.nvmlDeviceGetGpuInstanceId, part)
        active: dict[str, float] = {}
        if instance is not None and self._sampler.is_supported:
            sampler = self._parts.setdefault(instance, gpm.Sampler(nvml, self.handle, instance))
            active = ask("SM activity (GPM)", sampler.active_ratio) or {}
        return DeviceRow(
            f"{self.name}/mig:{number}",
            total_bytes=None if memory is None else int(memory.total),
            available_bytes=_free(memory),
            used_bytes=None if memory is None else float(memory.used),
            vendor=_VENDOR,
            model=text(ask("name", nvml.nvmlDeviceGetName, part)),
            uuid=text(ask("UUID", nvml.nvmlDeviceGetUUID, part)),
            instance=self._instance(part, instance),
            active_ratio=active,
            active_source=gpm.SOURCE if active else "",
            processes=self._processes(part),
            problems=ask.problems,
        )

    def _instance(self, part: Any, gpu_instance: int | None) -> str:
        """GPU instance and compute instance, for example "3/0"; "" if either is unknown."""
        ask = self._nvml.nvmlDeviceGetComputeInstanceId
        compute = self._asking("compute instance", ask, part)
        return "" if None in {gpu_instance, compute} else f"{gpu_instance}/{compute}"


def _has_library() -> bool:
    """Whether NVML exists without driver files, as in WSL."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _import_binding() -> Any:
    try:
        return import_module("pynvml")
    except ImportError:
        raise DeviceError(
            "there is an NVIDIA driver, and nvidia-ml-py to ask it is not installed; run "
            "pip install nvidia-ml-py"
        ) from None


def _free(memory: Any) -> int | None:
    """0 if more is used than exists: NVML then reports a huge number as free."""
    if memory is None:
        return None
    return int(memory.free) if memory.free <= memory.total else 0


def text(value: Any) -> str:
    """Decode bytes, which older bindings return."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _number(value: Any) -> float:
    """Value of a field by its type: double, unsigned int, long, long long (nvmlValueType_t)."""
    kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal")
    return float(getattr(value.value, kinds[min(value.valueType, len(kinds) - 1)]))


def _no_library(error: Any) -> str:
    described = nvml_words.describe_error(error.value, str(error))
    if error.value in {12, 13}:  # no library, or one without its entry
        return (
            "there is an NVIDIA driver, but its library libnvidia-ml.so.1 was not found; in a "
            "container allow it: --gpus all, NVIDIA_DRIVER_CAPABILITIES=utility,compute"
        )
    return f"NVML does not start: {described or error}"
