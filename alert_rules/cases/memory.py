"""Cases of the alerts on memory."""

from alert_rules.cases.case import Cases, Series, at, rises
from dfx_agent.catalogue import memory, verdicts

GIB = 2.0**30


def device(used_ratio: float, fragmentation_ratio: float, *, retries: bool) -> Series:
    count = rises if retries else at
    return (
        at(memory.GPU_ALLOCATED, used_ratio * 80 * GIB),
        at(memory.GPU_LIMIT, 80 * GIB),
        at(memory.GPU_FRAGMENTATION, fragmentation_ratio),
        count(memory.GPU_ALLOC_RETRIES, 3),
    )


def verdict(cause: str, value: float = 1, kind: str = "memory") -> Series:
    return (at(verdicts.VERDICT_ACTIVE, value, kind=kind, cause=cause, rank="3"),)


CASES = {
    ("DfxGpuMemoryRisk", "critical"): Cases(
        fires=((rises(memory.GPU_OOMS, 1),),),
        silent=((at(memory.GPU_OOMS, 0),), (at(memory.GPU_OOMS, 4),)),
    ),
    ("DfxGpuMemoryRisk", "warning"): Cases(
        fires=(
            device(0.93, 0.05, retries=True),
            device(0.5, 0.31, retries=True),
            verdict("device nearly full"),
            verdict("device leak"),
        ),
        silent=(
            device(0.91, 0.29, retries=True),
            device(0.95, 0.35, retries=False),
            (rises(memory.GPU_ALLOC_RETRIES, 3),),
            verdict("device nearly full", 0),
            verdict("device leak", 0),
            verdict("host leak"),
            verdict("memory not given back"),
        ),
    ),
    ("DfxHostMemoryLeak", "warning"): Cases(
        fires=(verdict("host leak"),),
        silent=(
            verdict("host leak", 0),
            verdict("device nearly full"),
            verdict("host leak", kind="data"),
            (at(memory.HOST_SLOPE, 50e6), at(memory.HOST_ANONYMOUS, 1 * GIB)),
            verdict("memory not given back"),
        ),
    ),
    ("DfxGpuMemoryNotGivenBack", "warning"): Cases(
        fires=(verdict("memory not given back"),),
        silent=(
            verdict("memory not given back", 0),
            verdict("memory not given back", kind="data"),
            verdict("device nearly full"),
            verdict("host leak"),
            (
                at(memory.GPU_STAGE_RESERVED, 70 * GIB, stage="rollout"),
                at(memory.GPU_STAGE_ALLOCATED, 1 * GIB, stage="rollout"),
                at(memory.GPU_LIMIT, 80 * GIB),
            ),
        ),
    ),
}
