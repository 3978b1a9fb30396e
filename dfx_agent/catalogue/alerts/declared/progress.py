"""Alerts on jobs that do not get on: hangs, deaths, ranks that the others wait for.

The agent's verdicts decide (``judge/hang``, ``judge/straggler``): they know how long each stage
normally takes, so these rules hold no times of their own.
"""

from dfx_agent.catalogue import performance, verdicts
from dfx_agent.catalogue.alerts.alert import Alert, Listing, Runbook
from dfx_agent.catalogue.alerts.conditions import Compare, Every, Ratio, Unless, series
from dfx_agent.catalogue.alerts.thresholds import Threshold

_LOST_SHARE = Threshold(
    "straggler_lost_share", 0.1, "ratio",
    "the others lose more than this share of a step by waiting for one rank",
)  # fmt: skip
_TOKEN_RATIO = Threshold(
    "token_runaway_ratio", 2, "",
    "two steps in a row have more than so many times the tokens of the median of the 32 before",
)  # fmt: skip
_SPIKE_RATIO = Threshold(
    "token_spike_ratio", 3, "",
    "the latest step has more than so many times the tokens of the median of the 32 before",
)  # fmt: skip
_IMBALANCE_RATIO = Threshold(
    "token_imbalance_ratio", 1.5, "",
    "one rank has more than so many times the mean rank's tokens in most of the latest 8 steps",
)  # fmt: skip
_MORE_TOKENS = "more tokens"
_STALLED_SECONDS = 60
# why a hang verdict lacks evidence: not that it sees a part of the job, nor that it cannot judge
LONG_WAIT = "long wait"


def _found(kind: str) -> Compare:
    return Compare(series(verdicts.VERDICT_ACTIVE, kind=kind), "==", 1)


def _blamed(kind: str) -> Listing:
    return Listing(series(verdicts.VERDICT_ACTIVE, kind=kind), "rank {rank}: {cause} ({stage})")


# an agent that ends with its job says so only once
_KEEP_SECONDS = 900

STEP_STALLED = Alert(
    "DfxStepStalled",
    "critical",
    "progress",
    _found("hang"),
    "The job hangs",
    Runbook(
        meaning="Ranks wait for another rank that is stopped, that is in its stage far longer than "
        "usual, or that is in another collective; or no rank of the run makes progress.",
        impact="No step ends until somebody acts; the job's own time-out may be half an hour away.",
        diagnosis="`dfx-agent diagnose` names the rank, the stage, the collective and shows the "
        "stacks; the evidence is stored in DIR/evidence (`dfx-agent report`).",
        mitigation="Save the evidence, then restart from the latest checkpoint. If the same "
        "rank or node hangs again, remove the node.",
    ),
    inhibits=("DfxStageStalled", "DfxStraggler", "DfxRankImbalance"),
    listing=_blamed("hang"),
    board="dfx-e2e",
)
RANK_DIED = Alert(
    "DfxRankDied",
    "critical",
    "progress",
    _found("crash"),
    "A rank of the job died",
    Runbook(
        meaning="A training process ended without an orderly shutdown, or in order while the "
        "others still needed it.",
        impact="Ranks that wait for it in a collective are blocked until the time-out.",
        diagnosis="`dfx-agent diagnose` says which rank died first and in which stage; look for "
        "the kernel's out-of-memory killer (dmesg), an exception in the rank's log, XID errors. "
        "For an orderly end: did the rank have fewer batches than the others, or leave the loop "
        "early?",
        mitigation="Restart from the latest checkpoint, without the node if it was the hardware.",
    ),
    inhibits=("DfxStepStalled", "DfxStageStalled", "DfxStraggler", "DfxRankImbalance"),
    keep_seconds=_KEEP_SECONDS,
    listing=_blamed("crash"),
    board="dfx-e2e",
)
STAGE_STALLED = Alert(
    "DfxStageStalled",
    "warning",
    "progress",
    Unless(
        Compare(
            series(
                verdicts.VERDICT_STATE, kind="hang", state="insufficient evidence", cause=LONG_WAIT
            ),
            "==",
            1,
        ),
        _found("hang"),
    ),
    "Ranks have waited unusually long for another rank",
    Runbook(
        meaning="Ranks wait far longer than usual, and it is not certain yet that the job hangs. "
        "The hang verdict says for which rank, unless it runs on a node without an agent.",
        impact="A hang, perhaps: no step ends meanwhile.",
        diagnosis="`dfx-agent diagnose` says what is known of the rank and when it counts as a "
        "hang. For a rank on another node, start an agent there.",
        mitigation="As for DfxStepStalled, once the verdict is found.",
    ),
    for_seconds=_STALLED_SECONDS,
    board="dfx-e2e",
)

_IS_SLOW = Compare(
    Ratio(series(verdicts.STRAGGLER_LOST_SECONDS), series(performance.RANK_STEP_SECONDS)),
    ">",
    _LOST_SHARE,
)
_HAS_MORE_TOKENS = Compare(
    series(verdicts.VERDICT_ACTIVE, kind="straggler", cause=_MORE_TOKENS), "==", 1
)
STRAGGLER = Alert(
    "DfxStraggler",
    "warning",
    "balance",
    Unless(_IS_SLOW, _HAS_MORE_TOKENS),
    "One rank makes the others wait, and not for its tokens",
    Runbook(
        meaning="In most of the latest steps the same rank arrived last, by more than ranks "
        "normally differ, and its tokens do not explain it.",
        impact="Every other rank pays the difference at every step.",
        diagnosis="The cause label and `dfx-agent diagnose` say where the time is: a slower stage "
        "points at clocks, heat or neighbours on the node; a late start at data loading.",
        mitigation="Check clocks, temperature and processes on the node; move the rank.",
    ),
    listing=_blamed("straggler"),
    board="dfx-ranks",
)
RANK_IMBALANCE = Alert(
    "DfxRankImbalance",
    "warning",
    "balance",
    Every((_IS_SLOW, _HAS_MORE_TOKENS)),
    "One rank makes the others wait because it has more tokens",
    Runbook(
        meaning="In most of the latest steps the same rank had more tokens than the others, and "
        "they explain most of the time that the others wait.",
        impact="Every other rank pays the difference at every step.",
        diagnosis="See tokens by rank: long prompts on one rank (sharding), or batches that are "
        "balanced by samples instead of tokens.",
        mitigation="Balance by tokens (verl: trainer.balance_batch), or shuffle between ranks.",
    ),
    inhibits=("DfxStraggler",),
    listing=_blamed("straggler"),
    board="dfx-ranks",
)
TOKEN_RUNAWAY = Alert(
    "DfxTokenRunaway",
    "warning",
    "balance",
    Compare(series(performance.SUSTAINED_TOKENS_RATIO), ">", _TOKEN_RATIO),
    "Steps suddenly have many more tokens than before",
    Runbook(
        meaning="Two steps in a row had far more tokens than the median of the 32 steps before.",
        impact="Steps take longer, and the peak of memory grows with them.",
        diagnosis="Did responses become longer, or did the number of samples change (a filter "
        "removed, dynamic batching without a limit)? Compare response length and step time.",
        mitigation="Set the token limit per batch, restore the filter, cut the longest prompts.",
    ),
    inhibits=("DfxTokenSpike",),
    listing=Listing(
        series(performance.SUSTAINED_TOKENS_RATIO), "{role}: {value:.3g} times the tokens of before"
    ),
    board="dfx-ranks",
)
TOKEN_SPIKE = Alert(
    "DfxTokenSpike",
    "info",
    "balance",
    Compare(series(performance.LATEST_TOKENS_RATIO), ">", _SPIKE_RATIO),
    "One step has far more tokens than those before",
    Runbook(
        meaning="The latest step had far more tokens than the median of the 32 steps before. A "
        "single step may be chance: DfxTokenRunaway says when it lasts.",
        impact="The step takes longer, and its peak of memory is higher: it may be the one that "
        "runs out of memory.",
        diagnosis="Compare response length and samples of the step with those before.",
        mitigation="If it comes back, set a token limit per batch.",
    ),
    listing=Listing(
        series(performance.LATEST_TOKENS_RATIO), "{role}: {value:.3g} times the tokens of before"
    ),
    board="dfx-ranks",
)
TOKEN_IMBALANCE = Alert(
    "DfxTokenImbalance",
    "info",
    "balance",
    Compare(series(performance.TOKEN_IMBALANCE), ">", _IMBALANCE_RATIO),
    "One rank has far more tokens than the others",
    Runbook(
        meaning="In most of the latest 8 steps one rank had far more tokens than the mean rank. "
        "Whether the others wait for it: DfxRankImbalance.",
        impact="None while something else bounds the step; else every other rank waits.",
        diagnosis="See tokens by rank: long prompts on one rank, or batches that are balanced by "
        "samples instead of tokens.",
        mitigation="Balance by tokens (verl: trainer.balance_batch), or shuffle between ranks.",
    ),
    listing=Listing(
        series(performance.TOKEN_IMBALANCE), "{role}: {value:.3g} times the mean rank's tokens"
    ),
    board="dfx-ranks",
)

ALERTS = (
    RANK_DIED,
    STEP_STALLED,
    STAGE_STALLED,
    RANK_IMBALANCE,
    STRAGGLER,
    TOKEN_RUNAWAY,
    TOKEN_SPIKE,
    TOKEN_IMBALANCE,
)
