"""Cases of the alert on batches that change between stages."""

from alert_rules.cases.case import Cases
from alert_rules.cases.progress import found, state

CASES = {
    ("DfxDataMisaligned", "critical"): Cases(
        fires=(found("data", "ids", "reward"), found("data", "moved", "actor_update")),
        silent=(found("hang"), state("data", "clear"), state("data", "insufficient evidence")),
    ),
}
