"""Cases of the alerts on asynchronous pipelines."""

from alert_rules.cases.case import Cases, Sample, Series, at
from dfx_agent.catalogue import bottleneck, event_loop, orchestrator

ENGINE, SYNC = "rollout replica 1", "weight transfer to rollout replica 1"


def late(
    seconds: float, role: str, stat: str = "p99", by_code: float = 0.5, other: str = ""
) -> Series:
    """``by_code``: share of it that code of ``role``, or of the ``other`` role, is to blame for."""
    return (
        at(event_loop.LAG_SECONDS, seconds, stat=stat, role=role, rank="0"),
        at(event_loop.HELD_SECONDS, 12, holder="step > dumps (json.py)", role=role, rank="0"),
        at(event_loop.CODE_RATIO, by_code, role=other or role, rank="0"),
    )


def cause(
    kind: str, bound_by: str, component: str, amount: float | None = 4.2, since: float | None = None
) -> Series:
    """One cause of a bottleneck; ``amount`` None is not known, ``since`` None is always."""
    labels = {"kind": kind, "bound_by": bound_by, "component": component, "unit": "seconds"}
    rows: list[Sample] = [at(bottleneck.CAUSE_ACTIVE, 1, **labels)]
    if amount is not None:
        rows.append(at(bottleneck.CAUSE_AMOUNT, amount, **labels))
    if since is not None:
        rows.append(at(bottleneck.CAUSE_SINCE_STEP, since, **labels))
    return tuple(rows)


STARVED = cause("few requests", "rollout", "rollout concurrency", since=12)
STALE = cause("stale samples", "rollout", "sample queue", since=12)
SLOW_ENGINE = cause("slow engine", "rollout", ENGINE)
STILL_ENGINE = cause("still engine", "stalled", ENGINE)
SYNC_GROWN = cause("weight sync", "weight sync", SYNC, since=12)
OTHERS = (
    cause("slow tool", "tool", "tool", since=12),
    cause("held loop", "event loop", "orchestrator event loop"),
    cause("slow rank", "peers", "trainer rank 1"),
    cause("hang", "stalled", "trainer rank 1", None, since=12),
)

CASES = {
    ("DfxEventLoopLate", "warning"): Cases(
        fires=(late(0.5, "orchestrator"), late(30, "rollout")),
        silent=(
            late(0.49, "orchestrator"),
            late(9, "trainer"),
            late(9, "driver", "max"),
            late(9, "orchestrator", by_code=0.49),
            late(9, "orchestrator", other="trainer"),
        ),
    ),
    ("DfxEventLoopToldLate", "warning"): Cases(
        fires=((at(orchestrator.EVENT_LOOP_LAG, 5.2, stat="max"),),),
        silent=(
            (at(orchestrator.EVENT_LOOP_LAG, 4.8, stat="max"),),
            (at(orchestrator.EVENT_LOOP_LAG, 12, stat="min"),),
        ),
    ),
    ("DfxLearnerStarved", "warning"): Cases(
        fires=(STARVED, cause("few requests", "rollout", "rollout concurrency", since=0)),
        silent=(STALE, SLOW_ENGINE, STILL_ENGINE, SYNC_GROWN, *OTHERS),
    ),
    ("DfxRolloutStale", "warning"): Cases(
        fires=(STALE,),
        silent=(STARVED, SLOW_ENGINE, STILL_ENGINE, SYNC_GROWN, *OTHERS),
    ),
    ("DfxEngineDegraded", "warning"): Cases(
        fires=(SLOW_ENGINE, STILL_ENGINE, cause("slow engine", "rollout", ENGINE, None)),
        silent=(STARVED, STALE, SYNC_GROWN, *OTHERS),
    ),
    ("DfxWeightSyncGrown", "warning"): Cases(
        fires=(SYNC_GROWN,),
        # it always cost that much
        silent=(cause("weight sync", "weight sync", SYNC), STARVED, STALE, SLOW_ENGINE, *OTHERS),
    ),
}
