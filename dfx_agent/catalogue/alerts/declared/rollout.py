"""Alerts on what the rollout delivers."""

from dfx_agent.catalogue import signals
from dfx_agent.catalogue.alerts.alert import Alert, Listing, Runbook
from dfx_agent.catalogue.alerts.conditions import Compare, Every, series
from dfx_agent.catalogue.alerts.thresholds import Threshold

_TRUNCATED = Threshold(
    "truncated_ratio", 0.3, "ratio", "more than this share of responses is truncated"
)
_TRUNCATION_RISE = Threshold(
    "truncated_rise", 0.2, "ratio", "the truncated share is so much more than at the start"
)
_ALL_TRUNCATED = Threshold(
    "truncated_broken_ratio", 0.9, "ratio",
    "more than this share of responses is truncated and the reward fell",
)  # fmt: skip
# no log of a run that failed this way was found: a guess
_ABORTED = Threshold(
    "aborted_ratio", 0.1, "ratio", "the median step gives up more than this share of its samples"
)  # fmt: skip
_ABORTED_RISE = Threshold(
    "aborted_rise", 0.05, "ratio", "the aborted share is so much more than at the start"
)
_TIMEOUT_RISE = Threshold(
    "timeout_rise", 0.02, "ratio", "so much more of the requests time out than at the start"
)
_TRUNCATION_MEDIAN = series(signals.SIGNAL_RECENT_MEDIAN, signal="truncation")
_RUNBOOK = Runbook(
    meaning="The share of responses cut at the longest allowed length rose since the start.",
    impact="Cut responses mostly score as failures: the reward dies some steps later (seen before "
    "7 of 16 real collapses).",
    diagnosis="Read cut responses: unfinished reasoning, or repetition? See length and entropy.",
    mitigation="Raise the limit for reasoning that is unfinished; for repetition, treat it as a "
    "divergence: roll back and lower the learning rate.",
)
_MEDIAN = Listing(_TRUNCATION_MEDIAN, "{value:.2g} of the responses of the latest 8 steps")

DEGRADED = Alert(
    "DfxRolloutDegraded",
    "warning",
    "rollout",
    Every(
        (
            Compare(_TRUNCATION_MEDIAN, ">", _TRUNCATED),
            Compare(series(signals.DRIFT_DIFFERENCE, signal="truncation"), ">", _TRUNCATION_RISE),
        )
    ),
    "Many more responses are truncated than at the start",
    _RUNBOOK,
    inhibits=("DfxTruncationRises",),
    listing=_MEDIAN,
)
ABORTED = Alert(
    "DfxRolloutAborted",
    "warning",
    "rollout",
    Compare(series(signals.ABORTED_RECENT_MEDIAN), ">", _ABORTED),
    "Many samples of the rollout are aborted",
    Runbook(
        meaning="Over the latest 8 steps the median step aborted a large share of its samples "
        "(time-outs, errors of tools or of the rollout engine, empty responses).",
        impact="The step trains on what is left: fewer samples, and often the easy ones only.",
        diagnosis="Look at the reason in the label why of dfx_aborted_ratio, at the rollout "
        "engine's log and at its queue; compare response lengths with the limit.",
        mitigation="Raise the time-out, lower the engine's load or repair the tool that fails.",
    ),
    inhibits=("DfxRolloutAbortsRise",),
    listing=Listing(
        series(signals.ABORTED_RECENT_MEDIAN), "{value:.2g} of the samples of the latest 8 steps"
    ),
)
BROKEN = Alert(
    "DfxRolloutDegraded",
    "critical",
    "rollout",
    Every(
        (
            Compare(_TRUNCATION_MEDIAN, ">", _ALL_TRUNCATED),
            Compare(series(signals.SYMPTOM_ACTIVE, symptom="reward", direction="down"), "==", 1),
        )
    ),
    "Nearly every response is truncated and the reward fell",
    _RUNBOOK,
    inhibits=("DfxTruncationRises",),
    listing=_MEDIAN,
)

TRUNCATION_RISES = Alert(
    "DfxTruncationRises",
    "info",
    "rollout",
    Compare(series(signals.DRIFT_DIFFERENCE, signal="truncation"), ">", _TRUNCATION_RISE),
    "More responses are truncated than at the start",
    _RUNBOOK,
    listing=_MEDIAN,
)
ABORTS_RISE = Alert(
    "DfxRolloutAbortsRise",
    "info",
    "rollout",
    Compare(series(signals.ABORTED_RISE), ">", _ABORTED_RISE),
    "More samples of the rollout are aborted than at the start",
    Runbook(
        meaning="The median of the latest 8 steps aborted a larger share of its samples than the "
        "median of the first 8. DfxRolloutAborted says when the share is high.",
        impact="The step trains on fewer samples, and often on the easy ones.",
        diagnosis="Look at the label why of dfx_aborted_ratio, and since when the share rises: did "
        "responses become longer, or an engine or a tool slower?",
        mitigation="Raise the time-out, lower the engine's load or repair the tool that fails.",
    ),
    listing=Listing(series(signals.ABORTED_RISE), "{value:.2g} more of the samples of a step"),
)
TIMEOUTS_RISE = Alert(
    "DfxRolloutTimeoutsRise",
    "info",
    "rollout",
    Compare(series(signals.TIMEOUT_RISE), ">", _TIMEOUT_RISE),
    "More requests of the rollout time out than at the start",
    Runbook(
        meaning="In the median of the latest 8 steps a larger share of the requests timed out than "
        "in the median of the first 8.",
        impact="The step trains on fewer samples, mostly on the short ones, and waits for each "
        "time-out.",
        diagnosis="Which reason of dfx_step_rollout_failures rises? Compare response lengths, the "
        "queue of the rollout engine and the latency of tools with the start of the run.",
        mitigation="Lower the engine's load, raise the time-out or repair the tool that is slow.",
    ),
    listing=Listing(series(signals.TIMEOUT_RISE), "{value:.2g} more of the requests of a step"),
)

ALERTS = (BROKEN, DEGRADED, ABORTED, TRUNCATION_RISES, ABORTS_RISE, TIMEOUTS_RISE)
