"""What the agent of a node concludes, with who is to blame."""

from dfx_agent.catalogue.spec import PER_NODE, Metric
from dfx_agent.snapshot.verdict import NO_STAGE

_INCIDENT = (*PER_NODE, "role", "kind", "state", "severity", "rank", "incident")

RUN_STATE = Metric(
    "dfx_run_state", "gauge", "", (*PER_NODE, "state"),
    "1 for the one state the run is in: found, warning, insufficient evidence or clear (judged "
    "just now, from enough, nothing found, and nothing fires that warns or pages).", "derived",
)  # fmt: skip
INCIDENT_BEGIN = Metric(
    "dfx_incident_begin_timestamp_seconds", "gauge", "seconds", _INCIDENT,
    "Unix time at which a problem began that a verdict, an alert or both report now; only an "
    "earlier event moves it. One series per rank to blame; rank is empty for none.",
    "derived",
)  # fmt: skip
INCIDENT_STEP = Metric(
    "dfx_incident_begin_step", "gauge", "", _INCIDENT,
    "Training step in which that problem began; absent when it is not known.", "derived",
)  # fmt: skip
VERDICT_ACTIVE = Metric(
    "dfx_verdict_active", "gauge", "",
    (*PER_NODE, "role", "kind", "cause", "stage", "rank"),
    "1 while the agent finds a problem of this kind (hang, straggler, crash, memory, divergence, "
    "data), one series per rank to blame; rank is empty when no rank can be named. stage says "
    f'"{NO_STAGE}" of a rank that is in none.', "derived",
)  # fmt: skip
VERDICT_STATE = Metric(
    "dfx_verdict_state", "gauge", "", (*PER_NODE, "role", "kind", "state", "cause"),
    "1 for what the agent says now: found, clear, or insufficient evidence; cause says why "
    "evidence is missing, where it is known.", "derived",
)  # fmt: skip
STRAGGLER_LOST_SECONDS = Metric(
    "dfx_straggler_lost_seconds", "gauge", "seconds", (*PER_NODE, "role", "rank"),
    "Time per step that the others lose by waiting for this rank; only while it is the straggler.",
    "derived",
)  # fmt: skip
