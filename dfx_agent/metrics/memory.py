"""Memory: the framework allocator of each device, anonymous memory of the process."""

from dfx_agent.metrics.spec import PER_RANK, Metric

GPU_ALLOCATED = Metric(
    "dfx_gpu_mem_allocated_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Memory of live tensors in the framework's allocator.", "shim",
)  # fmt: skip
GPU_RESERVED = Metric(
    "dfx_gpu_mem_reserved_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Memory the framework's allocator holds, free blocks in it included.", "shim",
)  # fmt: skip
GPU_LIMIT = Metric(
    "dfx_gpu_mem_limit_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Memory the device has.", "shim",
)  # fmt: skip
GPU_FRAGMENTATION = Metric(
    "dfx_gpu_mem_fragmentation_ratio", "gauge", "ratio", (*PER_RANK, "device"),
    "1 - allocated / reserved.", "derived",
)  # fmt: skip
GPU_STAGE_PEAK = Metric(
    "dfx_gpu_mem_stage_peak_bytes", "gauge", "bytes", (*PER_RANK, "device", "stage"),
    "Highest allocated memory sampled in the stage, about once a second since the guest came: a "
    "lower bound of the allocator's own peak, which is never reset.", "shim",
)  # fmt: skip
GPU_ALLOC_RETRIES = Metric(
    "dfx_gpu_mem_alloc_retries", "counter", "", (*PER_RANK, "device"),
    "Allocations that had to empty the allocator's cache first; each costs milliseconds.", "shim",
)  # fmt: skip
GPU_OOMS = Metric(
    "dfx_gpu_mem_ooms", "counter", "", (*PER_RANK, "device"),
    "Out-of-memory errors the allocator has raised, caught ones included.", "shim",
)  # fmt: skip
HOST_ANONYMOUS = Metric(
    "dfx_host_memory_anonymous_bytes", "gauge", "bytes", PER_RANK,
    "Resident anonymous memory of the process (RssAnon): what a leak grows.", "device",
)  # fmt: skip
HOST_SLOPE = Metric(
    "dfx_host_memory_slope_bytes", "gauge", "bytes", PER_RANK,
    "Growth of anonymous memory per step: median slope of all pairs of the newest 64 steps; absent "
    "below 8 steps.", "derived",
)  # fmt: skip

METRICS = (
    GPU_ALLOCATED,
    GPU_RESERVED,
    GPU_LIMIT,
    GPU_FRAGMENTATION,
    GPU_STAGE_PEAK,
    GPU_ALLOC_RETRIES,
    GPU_OOMS,
    HOST_ANONYMOUS,
    HOST_SLOPE,
)
