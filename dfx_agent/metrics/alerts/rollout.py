"""Alerts on what the rollout delivers."""

from dfx_agent.metrics import signals
from dfx_agent.metrics.alerts.alert import Alert, Runbook
from dfx_agent.metrics.alerts.conditions import Compare, Every, series

_TRUNCATION_MEDIAN = series(signals.SIGNAL_RECENT_MEDIAN, signal="truncation")
_RUNBOOK = Runbook(
    meaning="The share of responses cut at the longest allowed length rose since the start.",
    impact="Cut responses mostly score as failures: the reward dies some steps later (seen before "
    "7 of 16 real collapses).",
    diagnosis="Read cut responses: unfinished reasoning, or repetition? See length and entropy.",
    mitigation="Raise the limit for reasoning that is unfinished; for repetition, treat it as a "
    "divergence: roll back and lower the learning rate.",
)

DEGRADED = Alert(
    "DfxRolloutDegraded",
    "warning",
    "rollout",
    Every(
        (
            Compare(_TRUNCATION_MEDIAN, ">", 0.3),
            Compare(series(signals.DRIFT_DIFFERENCE, signal="truncation"), ">", 0.2),
        )
    ),
    "Many more responses are truncated than at the start",
    _RUNBOOK,
)
BROKEN = Alert(
    "DfxRolloutDegraded",
    "critical",
    "rollout",
    Every(
        (
            Compare(_TRUNCATION_MEDIAN, ">", 0.9),
            Compare(series(signals.SYMPTOM_ACTIVE, symptom="reward"), "==", 1),
        )
    ),
    "Nearly every response is truncated and the reward fell",
    _RUNBOOK,
)

ALERTS = (BROKEN, DEGRADED)
