"""Ascend NPUs through libdcmi: AI Core, vector, cube, HBM, power, temperature, processes.

Where the library is not there or does not fit, through the table of npu-smi, which has less.
"""

from __future__ import annotations

import glob
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from dfx_agent.node.devices import dcmi, npu_smi
from dfx_agent.node.devices.protocol import CounterTotals, DeviceError, DeviceQueries
from dfx_agent.snapshot import DeviceEvent, DeviceProcess, DeviceRow

DRIVER_FILES = ("/dev/davinci*",)
SOURCE = "dcmi"

_VENDOR = "ascend"
_MAX_EVENTS = 16
_MIB, _MHZ = float(1 << 20), 1e6
_UNITS = {"sm": dcmi.AI_CORE, "vector": dcmi.VECTOR, "tensor": dcmi.CUBE}
_MEMORY_BUSY = "dram"
_HEALTH = {0: "ok", 1: "minor alarm", 2: "major alarm", 3: "critical alarm"}
_REMEDIES = {
    dcmi.NOT_PERMITTED: "permission refused; run the agent as root or in the group HwHiAiUser",
    dcmi.NOT_IN_CONTAINER: "not available in a container; run the agent on the host",
}


def _events() -> deque[DeviceEvent]:
    return deque(maxlen=_MAX_EVENTS)


@dataclass
class _Chip:
    """One NPU over several reads."""

    number: int
    card: int
    chip: int
    model: str = ""
    totals: CounterTotals = field(default_factory=CounterTotals)
    health: str = ""
    alarms: deque[DeviceEvent] = field(default_factory=_events)
    num_alarms: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return f"{_VENDOR}:{self.number}"


class Backend:
    """All NPUs of this machine."""

    def __init__(self) -> None:
        self._library: dcmi.Library | None = None
        self._chips: dict[int, _Chip] = {}
        # cards, and chips of cards, that have not reported their number yet
        self._unknown: dict[tuple[int, int | None], dcmi.DcmiError] = {}
        self._no_library = ""
        self._npu_smi: npu_smi.NpuSmi | None = None
        try:
            self._library = dcmi.Library(dcmi.LIBRARIES)
        except OSError as error:
            self._no_library = str(error)

    def probe(self) -> bool:
        """Raises DeviceError if there is a driver that does not work."""
        is_here = any(map(glob.glob, DRIVER_FILES))
        if self._library is None:
            if is_here and self._may_use_npu_smi():
                return True
            if is_here:
                raise DeviceError(
                    f"there are Ascend NPUs, and libdcmi.so cannot be loaded ({self._no_library}); "
                    "in a container mount /usr/local/dcmi and /usr/local/Ascend/driver"
                )
            return False
        try:
            self._library.start()
            self._find(self._library, [(card, None) for card in self._library.cards()])
            if not self._chips and self._unknown:
                raise next(iter(self._unknown.values()))
        except (dcmi.DcmiError, AttributeError) as error:
            if not is_here:
                return False
            if self._may_use_npu_smi():
                return True
            raise DeviceError(f"libdcmi does not start: {error}; see dmesg") from None
        return bool(self._chips)

    def read(self) -> tuple[DeviceRow, ...]:
        """All NPUs; a lost NPU has a row with the problem only."""
        if self._npu_smi is not None:
            return self._npu_smi.read()
        library = self._library
        assert library is not None, "probe has loaded it"
        self._find(library, list(self._unknown))
        rows = [_row(library, chip) for _, chip in sorted(self._chips.items())]
        return (*rows, *(_unknown(*at, error) for at, error in self._unknown.items()))

    def _may_use_npu_smi(self) -> bool:
        if npu_smi.is_installed():
            self._npu_smi = npu_smi.NpuSmi()
        return self._npu_smi is not None

    def close(self) -> None:
        """The library holds no resources."""

    def _find(self, library: dcmi.Library, places: list[tuple[int, int | None]]) -> None:
        """Add the chips of these cards; a chip that does not answer is tried again later."""
        for card, chip in places:
            try:
                chips = range(library.num_chips(card)) if chip is None else (chip,)
            except dcmi.DcmiError as error:
                self._unknown[card, None] = error
                continue
            self._unknown.pop((card, None), None)
            for chip_index in chips:
                self._add(library, card, chip_index)

    def _add(self, library: dcmi.Library, card: int, chip: int) -> None:
        try:
            number = library.chip_number(card, chip)
        except dcmi.DcmiError as error:
            self._unknown[card, chip] = error
            return
        self._unknown.pop((card, chip), None)
        added = self._chips[number] = _Chip(number, card, chip)
        query = DeviceQueries(dcmi.DcmiError, str)
        added.model = query("name", library.chip_name, card, chip) or ""


def _unknown(card: int, chip: int | None, error: dcmi.DcmiError) -> DeviceRow:
    """Row of a chip that has never reported its number."""
    place = f"card {card}" if chip is None else f"card {card} chip {chip}"
    problem = f"the NPU is lost ({error}); see dmesg, then reset it or drain the node"
    return DeviceRow(f"{_VENDOR}:{place}", vendor=_VENDOR, problems=(problem,))


def _row(library: dcmi.Library, chip: _Chip) -> DeviceRow:
    ask = DeviceQueries(dcmi.DcmiError, _describe)
    try:
        return _query_row(library, chip, ask)
    except dcmi.DcmiError as error:
        return DeviceRow(
            chip.name, vendor=_VENDOR, place=chip.number, model=chip.model,
            events=tuple(chip.alarms), num_events=dict(chip.num_alarms),
            problems=(f"the NPU is lost ({error}); see dmesg, then reset it or drain the node",),
        )  # fmt: skip


def _query_row(library: dcmi.Library, chip: _Chip, ask: DeviceQueries) -> DeviceRow:
    at = chip.card, chip.chip
    hbm = ask("HBM", library.hbm, *at)
    power = ask("power", library.deciwatts, *at)
    heat = ask("temperature", library.celsius, *at)
    errors = ask("ECC", library.errors, *at)
    processes = ask("processes", library.processes, *at) or ()
    overall = ask("utilisation", library.percent, *at, dcmi.NPU)
    _note_health(chip, ask("health", library.health, *at))
    active = _active(library, chip, ask, overall)
    temperatures = {"gpu": heat, "memory": None if hbm is None else hbm.temp}
    counted = {} if errors is None or not errors.enable_flag else {
        "corrected": float(errors.total_single_bit_error_cnt),
        "uncorrected": float(errors.total_double_bit_error_cnt),
    }  # fmt: skip
    total = None if hbm is None else int(hbm.memory_size * _MIB)
    used = None if hbm is None else float(hbm.memory_usage * _MIB)
    return DeviceRow(
        chip.name,
        total_bytes=total,
        available_bytes=None if total is None or used is None else int(max(0, total - used)),
        used_bytes=used,
        vendor=_VENDOR,
        model=chip.model,
        place=chip.number,
        utilization_ratio=_ratio(overall),
        active_ratio=active,
        active_source=SOURCE if active else "",
        power_watts=None if power is None else power / 10,
        clock_hertz=_clocks(library, at, ask, {"sm": dcmi.AI_CORE_CLOCK, "memory": dcmi.HBM_CLOCK}),
        max_clock_hertz=_clocks(library, at, ask, {"sm": dcmi.AI_CORE_MAX_CLOCK}),
        temperature_celsius={k: float(v) for k, v in temperatures.items() if v is not None},
        errors_total=chip.totals.totals("ecc", counted),
        health=chip.health,
        events=tuple(chip.alarms),
        num_events=dict(chip.num_alarms),
        processes=tuple(DeviceProcess(pid, float(used_bytes)) for pid, used_bytes in processes),
        problems=ask.problems,
    )


def _active(
    library: dcmi.Library, chip: _Chip, ask: DeviceQueries, overall: int | None
) -> dict[str, float]:
    """Activity by unit.

    All cores read 0 while a profiler runs, and so does HBM in a VM with passthrough. Such a 0 is
    ignored if another value shows that the NPU is working.
    """
    at = chip.card, chip.chip
    cores = {unit: ask(unit, library.percent, *at, kind) for unit, kind in _UNITS.items()}
    memory = ask("HBM bandwidth", library.percent, *at, dcmi.HBM_BANDWIDTH)
    if not any(cores.values()) and (overall or memory):
        cores = {}
    if not memory and (overall or any(cores.values())):
        memory = None
    percents = {**cores, _MEMORY_BUSY: memory}
    return {
        unit: ratio for unit, percent in percents.items() if (ratio := _ratio(percent)) is not None
    }


def _clocks(
    library: dcmi.Library, at: tuple[int, int], ask: DeviceQueries, kinds: dict[str, int]
) -> dict[str, float]:
    mhz_by_clock = {
        name: ask("clocks", library.megahertz, *at, kind) for name, kind in kinds.items()
    }
    return {name: mhz * _MHZ for name, mhz in mhz_by_clock.items() if mhz}


def _note_health(chip: _Chip, code: int | None) -> None:
    """Store the health; a new alarm becomes an event."""
    health = "" if code is None else _HEALTH.get(code, "not found")
    if health not in {"", "ok", chip.health}:
        chip.alarms.append(DeviceEvent(chip.name, health, time.time(), "see dmesg"))
        chip.num_alarms[health] += 1
    chip.health = health


def _ratio(percent: int | None) -> float | None:
    return None if percent is None or not 0 <= percent <= 100 else percent / 100


def _describe(error: Exception) -> str:
    """Text for an error of one query; "" if the chip lacks the feature."""
    assert isinstance(error, dcmi.DcmiError)
    if error.is_lost:
        raise error
    return "" if error.code == dcmi.NOT_SUPPORTED else _REMEDIES.get(error.code, str(error))
