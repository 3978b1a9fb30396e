"""Cases of the alerts on memory."""

from alert_rules.cases.case import Cases, Series, at, rises
from dfx_agent.metrics import memory

GIB = 2.0**30


def device(used_ratio: float, fragmentation_ratio: float, *, retries: bool) -> Series:
    count = rises if retries else at
    return (
        at(memory.GPU_ALLOCATED, used_ratio * 80 * GIB),
        at(memory.GPU_LIMIT, 80 * GIB),
        at(memory.GPU_FRAGMENTATION, fragmentation_ratio),
        count(memory.GPU_ALLOC_RETRIES, 3),
    )


def process(slope_bytes: float, anonymous_bytes: float) -> Series:
    return (
        at(memory.HOST_SLOPE, slope_bytes),
        at(memory.HOST_ANONYMOUS, anonymous_bytes),
        at(memory.HOST_SLOPE, 1e5, rank="1"),
        at(memory.HOST_ANONYMOUS, 30 * GIB, rank="1"),
    )


CASES = {
    ("DfxGpuMemoryRisk", "critical"): Cases(
        fires=((rises(memory.GPU_OOMS, 1),),),
        silent=((at(memory.GPU_OOMS, 0),), (at(memory.GPU_OOMS, 4),)),
    ),
    ("DfxGpuMemoryRisk", "warning"): Cases(
        fires=(device(0.93, 0.05, retries=True), device(0.5, 0.31, retries=True)),
        silent=(
            device(0.91, 0.29, retries=True),
            device(0.95, 0.35, retries=False),
            (rises(memory.GPU_ALLOC_RETRIES, 3),),
        ),
    ),
    ("DfxHostMemoryLeak", "warning"): Cases(
        fires=(process(5.1e6, 1 * GIB), process(21e6, 1e10)),
        silent=(process(4.9e6, 1 * GIB), process(19e6, 1e10)),
    ),
}
