"""Alerts on memory: devices that are about to run out, processes that leak."""

from dfx_agent.catalogue import memory, verdicts
from dfx_agent.catalogue.alerts.alert import Alert, Listing, Runbook
from dfx_agent.catalogue.alerts.conditions import Compare, Either, Every, Grows, Ratio, series
from dfx_agent.catalogue.alerts.thresholds import Threshold

_USED = Threshold(
    "gpu_memory_used_ratio", 0.92, "ratio",
    "live tensors take more than this share of the device and an allocation had to be retried",
)  # fmt: skip
_FRAGMENTED = Threshold(
    "gpu_memory_fragmentation_ratio", 0.3, "ratio",
    "more than this share of the reserved memory is free and an allocation had to be retried",
)  # fmt: skip
_RETRY_WINDOW_SECONDS = 900


def _found(cause: str) -> Compare:
    """The agent's verdict: it knows the limits, and what grows at every step."""
    return Compare(series(verdicts.VERDICT_ACTIVE, kind="memory", cause=cause), "==", 1)


_RETRIED = Every(
    (
        Grows(series(memory.GPU_ALLOC_RETRIES), _RETRY_WINDOW_SECONDS),
        Either(
            (
                Compare(Ratio(series(memory.GPU_ALLOCATED), series(memory.GPU_LIMIT)), ">", _USED),
                Compare(series(memory.GPU_FRAGMENTATION), ">", _FRAGMENTED),
            )
        ),
    )
)

_RUNBOOK = Runbook(
    meaning="The framework's allocator had to empty its cache to serve an allocation while live "
    "tensors nearly fill the device or the free memory is in pieces; or it holds more than 92 % "
    "of the device, and the unused part grows at every step; or the memory of tensors "
    "grows at every step, and the device is full within 10,000 steps or an hour; critical: it "
    "failed and raised an out-of-memory error, which the job may have caught.",
    impact="Each retry costs milliseconds and synchronises the device; the next longer batch ends "
    "the job.",
    diagnosis="Which stage owns the peak, and since which step? Reserved memory near the limit "
    "alone is normal. Compare response length and tokens per step with the start of the run. "
    "`dfx-agent diagnose` says in how many steps the device is full, and which ranks leak.",
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
    Either((_found("device nearly full"), _found("device leak"), _RETRIED)),
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
    _found("host leak"),
    "Host memory grows at every step, and its limit is near",
    Runbook(
        meaning="The process's anonymous memory grows step after step, and at this pace the limit "
        "of its control group, or the host's memory, is reached within 10,000 steps or an hour.",
        impact="The kernel kills the process when the limit is reached.",
        diagnosis="`dfx-agent diagnose` names the limit and the number of steps left. Growth on "
        "all ranks: the training loop stores tensors or metrics. Growth on one rank: its data "
        "worker or a cache. Look for lists that only grow, and for stored results that hold their "
        "graph.",
        mitigation="Detach stored tensors, and plan a restart from a checkpoint before the node is "
        "full. Call `malloc_trim(0)` or lower MALLOC_ARENA_MAX only where `dfx-agent diagnose` "
        "says that glibc would release memory.",
    ),
    # the slope of a healthy rank is never exactly 0: only the verdict knows who leaks
    listing=Listing(
        series(verdicts.VERDICT_ACTIVE, kind="memory", cause="host leak"), "rank {rank}"
    ),
    board="dfx-memory",
)
NOT_GIVEN_BACK = Alert(
    "DfxGpuMemoryNotGivenBack",
    "warning",
    "memory",
    _found("memory not given back"),
    "Offloading does not release device memory",
    Runbook(
        meaning="A rank offloads, and in each of its last four rollouts its allocator held at "
        "least a tenth of the device without using it.",
        impact="The rollout engine on the same device has that much less for its KV cache, or runs "
        "out of memory when it wakes up.",
        diagnosis="`dfx-agent diagnose` says how much, on which ranks. Look at what was allocated "
        "and reserved after offloading on the board: reserved alone is the allocator's cache, "
        "allocated is tensors that the job still refers to.",
        mitigation="Call torch.cuda.empty_cache() after offloading. Remove references to tensors "
        "(gradients, optimizer states, graphs). Make sure that an exception between sleep and "
        "wake-up does not skip the sleep.",
    ),
    listing=Listing(
        series(memory.GPU_STAGE_RESERVED, stage="rollout"),
        "rank {rank} device {device}: {value:.3g} bytes reserved in its rollout",
    ),
    board="dfx-memory",
)

ALERTS = (OUT_OF_MEMORY, MEMORY_RISK, HOST_LEAK, NOT_GIVEN_BACK)
