"""GPM of NVML: activity of the parts of a GPU between two samples; for Hopper and newer.

Needs no daemon and no DCGM. An older GPU reports that it has no GPM.
"""

from __future__ import annotations

from typing import Any

# metric number in nvml.h -> unit whose activity it measures, in percent
_UNITS = {2: "sm", 3: "sm_occupancy", 5: "tensor", 10: "dram"}
SOURCE = "nvml_gpm"


class Sampler:
    """Activity of one GPU, or of one MIG part."""

    def __init__(self, nvml: Any, handle: Any, instance: int | None = None) -> None:
        self._nvml, self._handle, self._instance = nvml, handle, instance
        self._is_supported: bool | None = None
        self._before: Any = None

    @property
    def is_supported(self) -> bool:
        """True until the GPU reports that it has no GPM."""
        return self._is_supported is not False

    def active_ratio(self) -> dict[str, float]:
        """Activity by unit since the last call; empty at the first call, and without GPM."""
        nvml = self._nvml
        if self._is_supported is None:
            self._is_supported = self._query_support()
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
        """Free the last sample."""
        before, self._before = self._before, None
        if before is not None:
            self._nvml.nvmlGpmSampleFree(before)

    def _query_support(self) -> bool:
        """False with a driver before 520, which lacks the function."""
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
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version = nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(_UNITS)
        query.sample1, query.sample2 = before, now
        for index, number in enumerate(_UNITS):
            query.metrics[index].metricId = number
        nvml.nvmlGpmMetricsGet(query)
        return {
            unit: ratio
            for metric, unit in zip(query.metrics, _UNITS.values(), strict=False)
            if metric.nvmlReturn == 0 and (ratio := as_ratio(metric.value)) is not None
        }


def as_ratio(percent: float) -> float | None:
    """None for an invalid value: a library may return NaN at first. 101 % counts as 100 %."""
    return min(1.0, percent / 100) if 0.0 <= percent <= 101.0 else None
