"""What a device can multiply at most: dense figures of its vendor, by type of numbers.

A name that is not here has no peak, and a rank on it no MFU: better none than one that is wrong by
a factor of two. ``peak_tflops`` of the settings goes before the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from dfx_agent.snapshot import PeakSource

_TERA = 1e12
OVERRIDE_OF_ALL = "all"
# Types of numbers as torch names them; half: bfloat16 and float16 alike.
_HALF = ("bfloat16", "float16")


class DeviceModel(NamedTuple):
    """Devices whose name matches, and what each does in TFLOP/s, dense.

    ``source``: the vendor's document.
    """

    pattern: str
    half: float
    tf32: float | None
    float32: float | None
    float8: float | None
    source: str

    def tflops(self, dtype: str) -> float | None:
        if dtype in _HALF:
            return self.half
        if dtype.startswith("float8"):
            return self.float8
        return {"tf32": self.tf32, "float32": self.float32}.get(dtype)


_H100 = "NVIDIA H100 Tensor Core GPU datasheet; half of what it says with sparsity"
_BLACKWELL = "NVIDIA Blackwell datasheet (HGX B200, GB200); half of what it says with sparsity"
_CANN = "Huawei CANN, platform_config/*.ini: cores x 16 x 16 x 16 x 2 x frequency of the cube"
_ADA = "NVIDIA datasheet; half of what it says with sparsity"
# The first that matches; what a name has in addition stands before what it shares.
PARTS = (
    DeviceModel(r"\bGB200\b", 2500.0, 1250.0, 80.0, 5000.0, _BLACKWELL),
    DeviceModel(r"\bB200\b", 2250.0, 1125.0, 75.0, 4500.0, _BLACKWELL),
    DeviceModel(r"\bH20\b", 148.0, 74.0, 44.0, 296.0, "NVIDIA H20 datasheet"),
    DeviceModel(r"\b(H100|H800) PCIe\b", 756.0, 378.0, 51.0, 1513.0, _H100),
    DeviceModel(r"\bH100 NVL\b", 835.5, 417.5, 60.0, 1670.5, _H100),
    DeviceModel(r"\bH200 NVL\b", 835.5, 417.5, 60.0, 1670.5, "NVIDIA H200 datasheet, as above"),
    DeviceModel(r"\b(H100|H800)\b", 989.4, 494.7, 66.9, 1978.9, _H100),
    DeviceModel(r"\bH200\b", 989.4, 494.7, 66.9, 1978.9, "NVIDIA H200 datasheet, as above"),
    DeviceModel(r"\bGH200\b", 989.4, 494.7, 66.9, 1978.9, "NVIDIA GH200 datasheet, as above"),
    DeviceModel(r"\b(A100|A800)\b", 312.0, 156.0, 19.5, None, "NVIDIA A100 datasheet"),
    DeviceModel(r"\bA40\b", 149.7, 74.8, 37.4, None, "NVIDIA A40 datasheet"),
    DeviceModel(r"\bA30\b", 165.0, 82.0, 10.3, None, "NVIDIA A30 datasheet"),
    DeviceModel(r"\bA10\b", 125.0, 62.5, 31.2, None, "NVIDIA A10 datasheet"),
    DeviceModel(r"\bL40S\b", 362.05, 183.0, 91.6, 733.0, _ADA),
    DeviceModel(r"\bL40\b", 181.05, 90.5, 90.5, 362.0, _ADA),
    DeviceModel(r"\bL4\b", 121.0, 60.0, 30.3, 242.5, _ADA),
    DeviceModel(r"\bMI355X\b", 2516.6, None, 157.3, 5033.2, "AMD Instinct MI355X datasheet"),
    DeviceModel(r"\bMI350X\b", 2309.6, None, 144.2, 4614.0, "AMD Instinct MI350X datasheet"),
    DeviceModel(
        r"\b(MI300X|MI325X)\b", 1307.4, 653.7, 163.4, 2614.9, "AMD Instinct MI300X datasheet"
    ),
    DeviceModel(r"\bMI300A\b", 980.6, 490.3, 122.6, 1961.2, "AMD Instinct MI300A datasheet"),
    # torch sees each of the two dies of one as a device
    DeviceModel(
        r"\bMI250X\b", 191.5, None, 47.9, None, "AMD Instinct MI250X datasheet, half of it"
    ),
    DeviceModel(r"\bMI210\b", 181.0, None, 45.3, None, "AMD Instinct MI210 datasheet"),
    # torch sees each of the two dies of a 910C (Ascend910_93..) as a device: figures are of a die
    DeviceModel(r"\bAscend ?910(B1|_9391)\b", 363.7, None, None, None, _CANN),  # 24, 1.85 GHz
    DeviceModel(r"\bAscend ?910B2C?\b", 353.9, None, None, None, _CANN),  # 24 cores, 1.8 GHz
    DeviceModel(r"\bAscend ?910B3\b", 294.9, None, None, None, _CANN),  # 20 cores, 1.8 GHz
    # 20 cores, 1.5 GHz
    DeviceModel(r"\bAscend ?910(B4(-1)?|_9362)\b", 245.8, None, None, None, _CANN),
    DeviceModel(
        r"\bAscend910(Pro)?A\b", 256.0, None, None, None, "Huawei, Ascend 910, August 2019"
    ),
)


class Peaks:
    """The table, with what the settings say before it: TFLOP/s by type of numbers, or of all."""

    def __init__(self, override: Mapping[str, float] | None = None) -> None:
        self._override = dict(override or {})

    def peak(self, device: str, dtype: str) -> tuple[float | None, PeakSource]:
        """(FLOP/s, where that is from)."""
        given = self._override.get(dtype, self._override.get(OVERRIDE_OF_ALL))
        if given is not None:
            return given * _TERA, "override"
        part = next((part for part in PARTS if re.search(part.pattern, device)), None)
        tflops = part.tflops(dtype) if part is not None else None
        return (tflops * _TERA, "table") if tflops else (None, "unknown")
