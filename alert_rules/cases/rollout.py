"""Cases of the alerts on what the rollout delivers."""

from alert_rules.cases.case import Cases, Series, at
from alert_rules.cases.stability import active
from dfx_agent.catalogue import signals


def truncation(median: float, difference: float) -> Series:
    return (
        at(signals.SIGNAL_RECENT_MEDIAN, median, signal="truncation"),
        at(signals.DRIFT_DIFFERENCE, difference, signal="truncation"),
    )


def aborted(ratio: float) -> Series:
    return (at(signals.ABORTED_RECENT_MEDIAN, ratio),)


CASES = {
    ("DfxRolloutDegraded", "critical"): Cases(
        fires=((*truncation(0.91, 0.9), *active("reward")),),
        silent=((*truncation(0.89, 0.9), *active("reward")), (*truncation(0.91, 0.9), *active())),
    ),
    ("DfxRolloutDegraded", "warning"): Cases(
        fires=(truncation(0.31, 0.21),),
        silent=(truncation(0.29, 0.21), truncation(0.31, 0.19)),
    ),
    ("DfxRolloutAborted", "warning"): Cases(fires=(aborted(0.105),), silent=(aborted(0.095),)),
    ("DfxTruncationRises", "info"): Cases(
        fires=((at(signals.DRIFT_DIFFERENCE, 0.21, signal="truncation"),),),
        silent=(
            (at(signals.DRIFT_DIFFERENCE, 0.19, signal="truncation"),),
            (at(signals.DRIFT_DIFFERENCE, 0.5, signal="reward"),),
        ),
    ),
    ("DfxRolloutAbortsRise", "info"): Cases(
        fires=((at(signals.ABORTED_RISE, 0.052),),),
        silent=((at(signals.ABORTED_RISE, 0.048),), aborted(0.5)),
    ),
    ("DfxRolloutTimeoutsRise", "info"): Cases(
        fires=((at(signals.TIMEOUT_RISE, 0.021),),),
        silent=((at(signals.TIMEOUT_RISE, 0.019),), (at(signals.ABORTED_RISE, 0.5),)),
    ),
}
