"""Ascend's device library through ctypes: layouts and error codes of dcmi_interface_api.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char, c_int, c_uint, c_ulong, c_ulonglong
from typing import Any

LIBRARIES = (
    "libdcmi.so",
    "/usr/local/dcmi/libdcmi.so",
    "/usr/local/Ascend/driver/lib64/driver/libdcmi.so",
)
_MAX_CARDS, _MAX_PROCESSES, _NAME_BYTES = 64, 32, 32
_HBM = 2  # dcmi_device_type

# dcmi_get_device_utilization_rate
AI_CORE, HBM_BANDWIDTH, VECTOR, NPU, CUBE = 2, 10, 12, 13, 14
# dcmi_freq_type
HBM_CLOCK, AI_CORE_CLOCK, AI_CORE_MAX_CLOCK = 6, 7, 9

NOT_PERMITTED, TIME_OUT, NOT_EXIST, NOT_READY, NOT_IN_CONTAINER, NOT_SUPPORTED = (
    -8002, -8006, -8008, -8012, -8013, -8255,
)  # fmt: skip
_LOST = frozenset({-8007, NOT_EXIST, -8009, NOT_READY, -8016})


class DcmiError(Exception):
    """A function of the library failed; ``code`` is a DCMI_ERR_CODE."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {code}")
        self.code = code

    @property
    def is_lost(self) -> bool:
        """Whether the whole device is unavailable."""
        return self.code in _LOST


class ChipInfo(ctypes.Structure):
    """struct dcmi_chip_info."""

    _fields_ = (
        ("chip_type", c_char * _NAME_BYTES), ("chip_name", c_char * _NAME_BYTES),
        ("chip_ver", c_char * _NAME_BYTES), ("aicore_cnt", c_uint),
    )  # fmt: skip


class HbmInfo(ctypes.Structure):
    """struct dcmi_hbm_info; sizes are MiB."""

    _fields_ = (
        ("memory_size", c_ulonglong), ("freq", c_uint), ("memory_usage", c_ulonglong),
        ("temp", c_int), ("bandwith_util_rate", c_uint),
    )  # fmt: skip


class EccInfo(ctypes.Structure):
    """struct dcmi_ecc_info; the totals survive a reset."""

    _fields_ = (
        ("enable_flag", c_int),
        ("single_bit_error_cnt", c_uint), ("double_bit_error_cnt", c_uint),
        ("total_single_bit_error_cnt", c_uint), ("total_double_bit_error_cnt", c_uint),
        ("single_bit_isolated_pages_cnt", c_uint), ("double_bit_isolated_pages_cnt", c_uint),
    )  # fmt: skip


class ProcessMemoryInfo(ctypes.Structure):
    """struct dcmi_proc_mem_info; bytes."""

    _fields_ = (("proc_id", c_int), ("proc_mem_usage", c_ulong))


# argument types of each function that is called
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "dcmi_init": (),
    "dcmi_get_card_list": (POINTER(c_int), POINTER(c_int), c_int),
    "dcmi_get_card_num_list": (POINTER(c_int), POINTER(c_int), c_int),
    "dcmi_get_device_num_in_card": (c_int, POINTER(c_int)),
    "dcmi_get_device_logic_id": (POINTER(c_int), c_int, c_int),
    "dcmi_get_device_chip_info": (c_int, c_int, POINTER(ChipInfo)),
    "dcmi_get_device_health": (c_int, c_int, POINTER(c_uint)),
    "dcmi_get_device_utilization_rate": (c_int, c_int, c_int, POINTER(c_uint)),
    "dcmi_get_device_hbm_info": (c_int, c_int, POINTER(HbmInfo)),
    "dcmi_get_device_power_info": (c_int, c_int, POINTER(c_int)),
    "dcmi_get_device_temperature": (c_int, c_int, POINTER(c_int)),
    "dcmi_get_device_frequency": (c_int, c_int, c_int, POINTER(c_uint)),
    "dcmi_get_device_ecc_info": (c_int, c_int, c_int, POINTER(EccInfo)),
    "dcmi_get_device_resource_info": (c_int, c_int, POINTER(ProcessMemoryInfo), POINTER(c_int)),
}


class Library:
    """libdcmi.so; OSError if none of ``paths`` can be loaded.

    Raises AttributeError for a function that this version lacks, DcmiError for one that fails.
    """

    def __init__(self, paths: Sequence[str] = LIBRARIES) -> None:
        self._library = _load(paths)

    def start(self) -> None:
        """Call once, before all other functions."""
        self._call("dcmi_init")

    def cards(self) -> list[int]:
        num, cards = c_int(), (c_int * _MAX_CARDS)()
        try:
            self._call("dcmi_get_card_list", byref(num), cards, _MAX_CARDS)
        except AttributeError:
            self._call("dcmi_get_card_num_list", byref(num), cards, _MAX_CARDS)
        return list(cards[: max(0, min(num.value, _MAX_CARDS))])

    def num_chips(self, card: int) -> int:
        return min(_MAX_CARDS, self._number("dcmi_get_device_num_in_card", c_int, card))

    def chip_number(self, card: int, chip: int) -> int:
        """The number in /dev/davinciN."""
        number = c_int()
        self._call("dcmi_get_device_logic_id", byref(number), card, chip)
        return number.value

    def chip_name(self, card: int, chip: int) -> str:
        info = ChipInfo()
        self._call("dcmi_get_device_chip_info", card, chip, byref(info))
        parts = (info.chip_type, info.chip_name)
        return " ".join(part.decode("utf-8", "replace").strip() for part in parts if part)

    def health(self, card: int, chip: int) -> int:
        """0 is healthy; 1, 2 and 3 are a minor, major and critical alarm."""
        return self._number("dcmi_get_device_health", c_uint, card, chip)

    def percent(self, card: int, chip: int, kind: int) -> int:
        """Utilization of AI_CORE, VECTOR, CUBE, NPU or HBM_BANDWIDTH."""
        return self._number("dcmi_get_device_utilization_rate", c_uint, card, chip, kind)

    def hbm(self, card: int, chip: int) -> HbmInfo:
        info = HbmInfo()
        self._call("dcmi_get_device_hbm_info", card, chip, byref(info))
        return info

    def deciwatts(self, card: int, chip: int) -> int:
        return self._number("dcmi_get_device_power_info", c_int, card, chip)

    def celsius(self, card: int, chip: int) -> int:
        return self._number("dcmi_get_device_temperature", c_int, card, chip)

    def megahertz(self, card: int, chip: int, kind: int) -> int:
        return self._number("dcmi_get_device_frequency", c_uint, card, chip, kind)

    def errors(self, card: int, chip: int) -> EccInfo:
        """ECC errors of the HBM."""
        info = EccInfo()
        self._call("dcmi_get_device_ecc_info", card, chip, _HBM, byref(info))
        return info

    def processes(self, card: int, chip: int) -> list[tuple[int, int]]:
        """(pid, bytes) of each process with memory on the chip."""
        rows, num = (ProcessMemoryInfo * _MAX_PROCESSES)(), c_int(_MAX_PROCESSES)
        self._call("dcmi_get_device_resource_info", card, chip, rows, byref(num))
        num_rows = max(0, min(num.value, len(rows)))
        return [(row.proc_id, row.proc_mem_usage) for row in rows[:num_rows]]

    def _number(self, function: str, kind: Any, *arguments: int) -> int:
        value = kind()
        self._call(function, *arguments, byref(value))
        return int(value.value)

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name)
        function.argtypes, function.restype = _SIGNATURES[name], c_int
        code = function(*arguments)
        if code:
            raise DcmiError(name, code)


def _load(paths: Sequence[str]) -> ctypes.CDLL:
    """Load the first library that works; the error is that of the first path."""
    errors: list[OSError] = []
    for path in paths:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            errors.append(error)
    raise errors[0]
