"""Alerts on memory: devices that are about to run out, processes that leak."""

from dfx_agent.metrics import memory
from dfx_agent.metrics.alerts.alert import Alert, Listing, Runbook
from dfx_agent.metrics.alerts.conditions import Compare, Either, Every, Grows, Ratio, series
from dfx_agent.metrics.alerts.thresholds import Threshold

_USED = Threshold(
    "gpu_memory_used_ratio", 0.92, "ratio",
    "live tensors take more than this share of the device and an allocation had to be retried",
)  # fmt: skip
_FRAGMENTED = Threshold(
    "gpu_memory_fragmentation_ratio", 0.3, "ratio",
    "more than this share of the reserved memory is free and an allocation had to be retried",
)  # fmt: skip
_LEAK_BYTES = Threshold(
    "host_leak_bytes_per_step", 5e6, "bytes", "a process grows by more than this per step"
)
_LEAK_SHARE = Threshold(
    "host_leak_share_per_step", 0.002, "ratio",
    "a process grows by more than this share of itself per step",
)  # fmt: skip
_RETRY_WINDOW_SECONDS = 900
_LEAK_SECONDS = 300

_RUNBOOK = Runbook(
    meaning="The framework's allocator had to empty its cache to serve an allocation while live "
    "tensors nearly fill the device or the free memory is in pieces; critical: it gave up and "
    "raised an out-of-memory error, which the job may have caught.",
    impact="Each retry costs milliseconds and synchronises the device; the next longer batch ends "
    "the job.",
    diagnosis="Which stage owns the peak, and since which step? Reserved memory near the limit "
    "alone is normal. Compare response length and tokens per step with the start of the run.",
    mitigation="Use expandable segments for fragmentation, smaller micro-batches or a token limit "
    "per batch for the peak, less memory for the rollout engine for both.",
)

OUT_OF_MEMORY = Alert(
    "DfxGpuMemoryRisk",
    "critical",
    "memory",
    Grows(series(memory.GPU_OOMS), _RETRY_WINDOW_SECONDS),
    "A device ran out of memory",
    _RUNBOOK,
    listing=Listing(
        series(memory.GPU_OOMS), "rank {rank} device {device}: {value:.0f} out-of-memory errors"
    ),
    board="dfx-memory",
)
MEMORY_RISK = Alert(
    "DfxGpuMemoryRisk",
    "warning",
    "memory",
    Every(
        (
            Grows(series(memory.GPU_ALLOC_RETRIES), _RETRY_WINDOW_SECONDS),
            Either(
                (
                    Compare(
                        Ratio(series(memory.GPU_ALLOCATED), series(memory.GPU_LIMIT)), ">", _USED
                    ),
                    Compare(series(memory.GPU_FRAGMENTATION), ">", _FRAGMENTED),
                )
            ),
        )
    ),
    "Device memory is about to run out",
    _RUNBOOK,
    listing=Listing(
        series(memory.GPU_ALLOC_RETRIES),
        "rank {rank} device {device}: {value:.0f} retried allocations",
    ),
    board="dfx-memory",
)
HOST_LEAK = Alert(
    "DfxHostMemoryLeak",
    "warning",
    "memory",
    Every(
        (
            Compare(series(memory.HOST_SLOPE), ">", _LEAK_BYTES),
            Compare(
                Ratio(series(memory.HOST_SLOPE), series(memory.HOST_ANONYMOUS)), ">", _LEAK_SHARE
            ),
        )
    ),
    "Host memory of a training process grows at every step",
    Runbook(
        meaning="The median growth of the process's anonymous memory over the newest 64 steps has "
        "been large for 5 minutes, also against the size of the process.",
        impact="The kernel kills the process when the node is full, often hours later.",
        diagnosis="Which ranks: all of them (the loop keeps tensors or metrics), or one (its data "
        "worker or a cache)? Look for lists that only grow, and for results kept with their graph.",
        mitigation="Detach what is kept; for the allocator of the C library call malloc_trim or "
        "lower MALLOC_ARENA_MAX; plan a restart from a checkpoint before the node is full.",
    ),
    for_seconds=_LEAK_SECONDS,
    listing=Listing(series(memory.HOST_SLOPE), "rank {rank}: {value:.3g} bytes per step"),
    board="dfx-memory",
)

ALERTS = (OUT_OF_MEMORY, MEMORY_RISK, HOST_LEAK)
