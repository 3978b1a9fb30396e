"""Cases of the alerts on asynchronous pipelines."""

from alert_rules.cases.case import Cases, Series, at
from dfx_agent.catalogue import event_loop


def late(seconds: float, role: str, stat: str = "p99") -> Series:
    return (
        at(event_loop.LAG_SECONDS, seconds, stat=stat, role=role, rank="0"),
        at(event_loop.HELD_SECONDS, 12, holder="step > dumps (json.py)", role=role, rank="0"),
    )


CASES = {
    ("DfxEventLoopLate", "warning"): Cases(
        fires=(late(0.5, "orchestrator"), late(30, "rollout")),
        silent=(late(0.49, "orchestrator"), late(9, "trainer"), late(9, "driver", "max")),
    ),
}
