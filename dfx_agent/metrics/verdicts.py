"""What the agent concludes, with who is to blame."""

from dfx_agent.metrics.spec import Metric

VERDICT_ACTIVE = Metric(
    "dfx_verdict_active", "gauge", "", ("run", "role", "kind", "cause", "stage", "rank"),
    "1 while the agent finds a problem of this kind (hang, straggler, crash, memory, divergence, "
    "data), one series per rank to blame; rank is empty when no rank can be named.", "derived",
)  # fmt: skip
VERDICT_STATE = Metric(
    "dfx_verdict_state", "gauge", "", ("run", "role", "kind", "state"),
    "1 for what the agent says now: found, clear, or insufficient evidence.", "derived",
)  # fmt: skip
STRAGGLER_LOST_SECONDS = Metric(
    "dfx_straggler_lost_seconds", "gauge", "seconds", ("run", "role", "rank"),
    "Time per step that the others lose by waiting for this rank; only while it is the straggler.",
    "derived",
)  # fmt: skip

METRICS = (
    VERDICT_ACTIVE,
    VERDICT_STATE,
    STRAGGLER_LOST_SECONDS,
)
