"""Memory: the framework allocator of each device, anonymous memory of the process."""

from collections.abc import Callable

from dfx_agent.catalogue.spec import PER_RANK, Metric, native
from dfx_agent.snapshot import DeviceMemory, GlibcHeap, RankRow


def _fragmentation(device: DeviceMemory) -> float | None:
    if device.allocated_bytes is None or not device.reserved_bytes:
        return None
    return 1 - device.allocated_bytes / device.reserved_bytes


GPU_ALLOCATED = Metric(
    "dfx_gpu_mem_allocated_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Memory of live tensors in the framework's allocator.", "shim",
    subject="device", value=lambda device: device.allocated_bytes,
)  # fmt: skip
GPU_RESERVED = Metric(
    "dfx_gpu_mem_reserved_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Memory the framework's allocator holds, free blocks in it included.", "shim",
    subject="device", value=lambda device: device.reserved_bytes,
)  # fmt: skip
GPU_LIMIT = Metric(
    "dfx_gpu_mem_limit_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Memory the device has.", "shim",
    subject="device", value=lambda device: device.limit_bytes,
)  # fmt: skip
GPU_FRAGMENTATION = Metric(
    "dfx_gpu_mem_fragmentation_ratio", "gauge", "ratio", (*PER_RANK, "device"),
    "1 - allocated / reserved.", "derived",
    subject="device", value=_fragmentation,
)  # fmt: skip
GPU_ACTIVE = Metric(
    "dfx_gpu_mem_active_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Memory in blocks that are in use or that a stream has not released yet.", "shim",
    subject="device", value=lambda device: device.active_bytes,
)  # fmt: skip
GPU_INACTIVE_SPLIT = Metric(
    "dfx_gpu_mem_inactive_split_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Free pieces of blocks with other pieces in use: emptying the cache does not release them.",
     "shim",
    subject="device", value=lambda device: device.inactive_split_bytes,
)  # fmt: skip
GPU_LARGEST_FREE = Metric(
    "dfx_gpu_mem_largest_free_block_bytes", "gauge", "bytes", (*PER_RANK, "device"),
    "Largest free piece that the allocator holds, looked for every 30 s at most.", "shim",
    subject="device", value=lambda device: device.largest_free_bytes,
)  # fmt: skip
GPU_STAGE_ALLOCATED = Metric(
    "dfx_gpu_mem_stage_allocated_bytes", "gauge", "bytes", (*PER_RANK, "device", "stage"),
    "Memory of live tensors when the stage was last sampled.", "shim",
    subject="device", value=lambda device: device.stage_allocated_bytes,
)  # fmt: skip
GPU_STAGE_RESERVED = Metric(
    "dfx_gpu_mem_stage_reserved_bytes", "gauge", "bytes", (*PER_RANK, "device", "stage"),
    "Memory that the allocator held when the stage was last sampled.", "shim",
    subject="device", value=lambda device: device.stage_reserved_bytes,
)  # fmt: skip
GPU_STAGE_RETRIES = Metric(
    "dfx_gpu_mem_stage_alloc_retries", "counter", "", (*PER_RANK, "device", "stage"),
    "Allocations that had to empty the allocator's cache first, by the stage at whose sample they "
    "were seen.", "shim",
    subject="device", value=lambda device: device.stage_num_alloc_retries,
)  # fmt: skip
GPU_STAGE_OOMS = Metric(
    "dfx_gpu_mem_stage_ooms", "counter", "", (*PER_RANK, "device", "stage"),
    "Out-of-memory errors, caught ones included, by the stage at whose sample they were seen.",
    "shim",
    subject="device", value=lambda device: device.stage_num_ooms,
)  # fmt: skip
GPU_STAGE_PEAK = Metric(
    "dfx_gpu_mem_stage_peak_bytes", "gauge", "bytes", (*PER_RANK, "device", "stage"),
    "Highest allocated memory sampled in the stage, about once a second since the guest came, or "
    "the allocator's own peak where that changed within the stage; never more than the real one, "
    "and the allocator's peak is never reset.", "shim",
    subject="device", value=lambda device: device.stage_peak_bytes,
)  # fmt: skip
GPU_ALLOC_RETRIES = Metric(
    "dfx_gpu_mem_alloc_retries", "counter", "", (*PER_RANK, "device"),
    "Allocations that had to empty the allocator's cache first; each costs milliseconds.", "shim",
    subject="device", value=lambda device: device.num_alloc_retries,
)  # fmt: skip
GPU_OOMS = Metric(
    "dfx_gpu_mem_ooms", "counter", "", (*PER_RANK, "device"),
    "Out-of-memory errors the allocator has raised, caught ones included.", "shim",
    subject="device", value=lambda device: device.num_ooms,
)  # fmt: skip
GPU_OUTSIDE_ALLOCATOR = Metric(
    "dfx_gpu_mem_beside_allocator_bytes", "gauge", "bytes", PER_RANK,
    "What the driver says that the process has on its devices, less what its allocators hold: "
    "context, buffers of communicators, workspaces of libraries.", "derived",
    subject="rank", value=lambda rank: rank.beside_allocator and rank.beside_allocator.now_bytes,
)  # fmt: skip


def _communication(rank: RankRow) -> float | None:
    outside = rank.beside_allocator
    return None if outside is None else outside.now_bytes - outside.least_bytes


def _communication_peak(rank: RankRow) -> float | None:
    outside = rank.beside_allocator
    return None if outside is None else outside.most_bytes - outside.least_bytes


GPU_COMMUNICATION = Metric(
    "dfx_gpu_mem_communication_estimate_bytes", "gauge", "bytes", PER_RANK,
    "An estimate of the buffers of communicators (NCCL, HCCL): "
    "dfx_gpu_mem_beside_allocator_bytes less the least that was seen of it, which is the context. "
    "Workspaces of libraries are in it; too low where the agent came when communicators were "
    "there already.", "derived",
    subject="rank", value=_communication,
)  # fmt: skip
GPU_COMMUNICATION_PEAK = Metric(
    "dfx_gpu_mem_communication_peak_estimate_bytes", "gauge", "bytes", PER_RANK,
    "Highest value of the same estimate since the agent began to follow the process: the most that "
    "was seen of dfx_gpu_mem_beside_allocator_bytes less the least.", "derived",
    subject="rank", value=_communication_peak,
)  # fmt: skip


def _held(rank: RankRow) -> dict[tuple[str, ...], float]:
    return {
        (held.device, held.stage, held.point, what): num_bytes
        for held in rank.held
        for what, num_bytes in (
            ("allocated", held.allocated_bytes),
            ("reserved", held.reserved_bytes),
            ("resident", held.resident_bytes),
            ("virtual", held.virtual_bytes),
        )
        if num_bytes is not None
    }


HELD = Metric(
    "dfx_offload_held_bytes", "gauge", "bytes", (*PER_RANK, "device", "stage", "point", "what"),
    "What was held when states were last brought to a device or taken off it: start/offload before "
    "they come, start/onload after, end/onload before they go, end/offload after; what: allocated "
    "and reserved by the allocator, resident and virtual of the process (device host).", "shim",
    subject="rank", value=_held,
)  # fmt: skip
DEVICE_TOTAL = Metric(
    "dfx_device_memory_total_bytes", "gauge", "bytes", ("device",),
    "Total memory of a device of this machine, as its driver reports it, all users together.",
    "device",
    subject="agent", value=lambda agent: {
        (row.device,): row.total_bytes for row in agent.devices if row.total_bytes is not None
    },
)  # fmt: skip
DEVICE_AVAILABLE = Metric(
    "dfx_device_memory_available_bytes", "gauge", "bytes", ("device",),
    "Memory that a device of this machine could still give out: of the host MemAvailable.",
    "device",
    subject="agent", value=lambda agent: {
        (row.device,): row.available_bytes
        for row in agent.devices
        if row.available_bytes is not None
    },
)  # fmt: skip
HOST_ANONYMOUS = Metric(
    "dfx_host_memory_anonymous_bytes", "gauge", "bytes", PER_RANK,
    "Resident anonymous memory of the process (RssAnon): what a leak grows.", "device",
    subject="rank", value=lambda rank: rank.host_memory and rank.host_memory.anonymous_bytes,
)  # fmt: skip
HOST_RESIDENT = Metric(
    "dfx_host_memory_resident_bytes", "gauge", "bytes", PER_RANK,
    "Resident memory of the process (rss), with pages of files, which the kernel takes back as it "
    "likes.", "device",
    subject="rank", value=lambda rank: rank.host_memory and rank.host_memory.resident_bytes,
)  # fmt: skip
HOST_VIRTUAL = Metric(
    "dfx_host_memory_virtual_bytes", "gauge", "bytes", PER_RANK,
    "Virtual memory of the process (vms): all that is mapped, in memory or not.", "device",
    subject="rank", value=lambda rank: rank.host_memory and rank.host_memory.virtual_bytes,
)  # fmt: skip


HOST_STAGE_RESIDENT = Metric(
    "dfx_host_memory_stage_resident_bytes", "gauge", "bytes", (*PER_RANK, "stage"),
    "Resident memory of the process when the stage was last sampled, about once a second.",
    "device",
    subject="rank", value=lambda rank: rank.host_memory and rank.host_memory.stage_resident_bytes,
)  # fmt: skip
HOST_STAGE_VIRTUAL = Metric(
    "dfx_host_memory_stage_virtual_bytes", "gauge", "bytes", (*PER_RANK, "stage"),
    "Virtual memory of the process when the stage was last sampled, about once a second.",
    "device",
    subject="rank", value=lambda rank: rank.host_memory and rank.host_memory.stage_virtual_bytes,
)  # fmt: skip
HOST_SLOPE = Metric(
    "dfx_host_memory_slope_bytes", "gauge", "bytes", PER_RANK,
    "Growth of anonymous memory per step: median slope of all pairs of the latest 64 steps; absent "
    "below 8 steps.", "derived",
    subject="rank", value=lambda rank: rank.host_memory and rank.host_memory.slope_bytes_per_step,
)  # fmt: skip


def _of_heap(figure: Callable[[GlibcHeap], float | None]) -> Callable[[RankRow], float | None]:
    def value(rank: RankRow) -> float | None:
        heap = rank.host_memory.heap if rank.host_memory else None
        return None if heap is None else figure(heap)

    return value


HEAP_USED = Metric(
    "dfx_host_memory_glibc_used_bytes", "gauge", "bytes", PER_RANK,
    "Memory that glibc's malloc has given out, large pieces that it maps one by one included; "
    "Python's small objects are not in it.", "shim",
    subject="rank", value=_of_heap(lambda heap: heap.used_bytes),
)  # fmt: skip
HEAP_RETAINED = Metric(
    "dfx_host_memory_glibc_retained_bytes", "gauge", "bytes", PER_RANK,
    "Freed memory that glibc's malloc retains and that is resident.", "shim",
    subject="rank", value=_of_heap(lambda heap: heap.retained_bytes),
)  # fmt: skip
HEAP_TRIMMABLE = Metric(
    "dfx_host_memory_glibc_trimmable_bytes", "gauge", "bytes", PER_RANK,
    "Of dfx_host_memory_glibc_retained_bytes about as much as malloc_trim(0) would give back: one "
    "page less for each free piece.", "derived",
    subject="rank", value=_of_heap(lambda heap: heap.trimmable_bytes),
)  # fmt: skip

# only logged by frameworks: the mapping names them
# fmt: off
_NATIVE = (
    native(
        "dfx_gpu_mem_phase_bytes", "bytes", ("phase", "op", "what", "device"),
        "Allocator figures (what) around one operation: ROLL in debug mode, mean over ranks; "
        "LightRFT of rank 0, driver_used is all that is in use on the device.",
    ),
    native(
        "dfx_gpu_mem_peak_allocated_bytes", "bytes", ("model",),
        "Highest allocated memory as the framework reports it; verl: of data-parallel rank 0, "
        "never reset.",
    ),
    native(
        "dfx_gpu_mem_peak_reserved_bytes", "bytes", ("model",),
        "Highest reserved memory as the framework reports it; prime-rl: of rank 0, reset every "
        "step.",
    ),
    native(
        "dfx_gpu_mem_peak_ratio", "ratio", ("which", "op", "device"),
        "Highest allocated or reserved memory / device memory as the framework reports it.",
    ),
    native(
        "dfx_kv_cache_usage_ratio", "ratio", ("engine", "agg"),
        "Share of the inference engine's KV cache in use.",
    ),
    native(
        "dfx_nccl_offload_freed_bytes", "bytes", ("which", "op"),
        "Memory that offloading the communicators freed, or reloading them took.",
    ),
    native(
        "dfx_process_memory_bytes", "bytes", ("phase", "op", "what"),
        "Resident (rss) and virtual (vms) memory around one worker operation; ROLL in debug "
        "mode.",
    ),
    native(
        "dfx_host_mem_used_bytes", "bytes", ("model",),
        "Memory in use on the whole host, as the framework reports it.",
    ),
)
# fmt: on
