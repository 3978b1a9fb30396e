"""GPM of NVML: how busy the parts of a GPU were between two samples; Hopper and newer.

No daemon and no DCGM is needed. A GPU before Hopper says that it has none.
"""

from __future__ import annotations

from typing import Any

# number of the metric in nvml.h -> the unit whose activity it is; all are percent
_UNITS = {2: "sm", 3: "sm_occupancy", 5: "tensor", 10: "dram"}
SOURCE = "nvml_gpm"


class Sampler:
    """One GPU, or one MIG part of it."""

    def __init__(self, nvml: Any, handle: Any, instance: int | None = None) -> None:
        self._nvml, self._handle, self._instance = nvml, handle, instance
        self._is_supported: bool | None = None
        self._before: Any = None

    @property
    def is_supported(self) -> bool:
        """Until it says that it has none."""
        return self._is_supported is not False

    def active_ratio(self) -> dict[str, float]:
        """By unit since the sample before; empty at the first, and where the GPU has no GPM."""
        nvml = self._nvml
        if self._is_supported is None:
            self._is_supported = self._asked_support()
        if not self._is_supported:
            return {}
        now = self._sample()
        before, self._before = self._before, now
        if before is None:
            return {}
        try:
            return self._between(before, now)
        finally:
            nvml.nvmlGpmSampleFree(before)

    def close(self) -> None:
        """Give the sample back."""
        before, self._before = self._before, None
        if before is not None:
            self._nvml.nvmlGpmSampleFree(before)

    def _asked_support(self) -> bool:
        """A driver before 520 does not know the question."""
        nvml = self._nvml
        try:
            return bool(nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported, AttributeError):
            return False

    def _sample(self) -> Any:
        nvml = self._nvml
        sample = nvml.nvmlGpmSampleAlloc()
        try:
            if self._instance is None:
                nvml.nvmlGpmSampleGet(self._handle, sample)
            else:
                nvml.nvmlGpmMigSampleGet(self._handle, self._instance, sample)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(sample)
            raise
        return sample

    def _between(self, before: Any, now: Any) -> dict[str, float]:
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_UNITS)
        asked.sample1, asked.sample2 = before, now
        for place, number in enumerate(_UNITS):
            asked.metrics[place].metricId = number
        nvml.nvmlGpmMetricsGet(asked)
        return {
            unit: ratio
            for metric, unit in zip(asked.metrics, _UNITS.values(), strict=False)
            if metric.nvmlReturn == 0 and (ratio := as_ratio(metric.value)) is not None
        }


def as_ratio(percent: float) -> float | None:
    """None for what is no share: a library may say NaN before it knows. 101 % is all of it."""
    return min(1.0, percent / 100) if 0.0 <= percent <= 101.0 else None
