"""Alerts on what holds an asynchronous pipeline together.

All but the event loop's speak of the bottleneck judge's causes: it compares each figure with its
own habit, or a replica with the others, and knows what is only felt because of something else. So
these rules hold no sizes of their own; they wait until a cause has lasted.
"""

from dfx_agent.catalogue import bottleneck, event_loop, orchestrator
from dfx_agent.catalogue.alerts.alert import Alert, Listing, Runbook
from dfx_agent.catalogue.alerts.conditions import Compare, Every, series
from dfx_agent.catalogue.alerts.thresholds import Threshold

_LAG_SECONDS = Threshold(
    "event_loop_lag_seconds", 0.5, "seconds",
    "an event loop that others wait for is late by this or more in 1 % of a minute",
)  # fmt: skip
_LOGGED_LAG_SECONDS = Threshold(
    "event_loop_told_lag_seconds", 5, "seconds",
    "the framework itself logs that its event loop was so late at most",
)  # fmt: skip
_BY_CODE = Threshold(
    "event_loop_code_ratio", 0.5, "ratio",
    "so much of what held the loop is code of the job; else its host has no processor for it",
)  # fmt: skip
# a trainer may run its steps in its loop: nobody waits for that one
_AWAITED = ("orchestrator", "driver", "collector", "environment", "rollout", "reward")
_LASTING_SECONDS = 30
_BOARD = "dfx-pipeline"


def _amount(*kinds: str) -> Listing:
    return Listing(series(bottleneck.CAUSE_AMOUNT, kind=kinds), "{component}: {value:.3g} {unit}")


def _is_found(*kinds: str) -> Compare:
    return Compare(series(bottleneck.CAUSE_ACTIVE, kind=kinds), "==", 1)


def _has_grown(kind: str) -> Compare:
    """Against its own habit; one that always cost much is how the job is made."""
    return Compare(series(bottleneck.CAUSE_SINCE_STEP, kind=kind), ">=", 0)


EVENT_LOOP_LATE = Alert(
    "DfxEventLoopLate",
    "warning",
    "progress",
    Every(
        (
            Compare(series(event_loop.LAG_SECONDS, stat="p99", role=_AWAITED), ">=", _LAG_SECONDS),
            Compare(series(event_loop.CODE_RATIO, role=_AWAITED), ">=", _BY_CODE),
        )
    ),
    "An event loop is blocked",
    Runbook(
        meaning="Code without an await blocks the event loop of a process, or threads of the "
        "process occupy the interpreter. All other tasks of the loop wait.",
        impact="Requests are sent late and answers are read late: engines idle, clients time out, "
        "heartbeats are missed.",
        diagnosis="`dfx-agent diagnose` names the code that blocked the loop and for how long. "
        "Large JSON or pickle payloads, string building and tokenizing are common causes.",
        mitigation="Move the code to a thread or a process (`asyncio.to_thread`, an executor), cut "
        "it into parts, or use fewer threads.",
    ),
    for_seconds=_LASTING_SECONDS,
    listing=Listing(
        series(event_loop.HELD_SECONDS, role=_AWAITED),
        "held for {value:.1f} s by {holder}",
        num_largest=3,
    ),
    board=_BOARD,
)
_LOGGED_LAG = series(orchestrator.EVENT_LOOP_LAG, stat="max")
EVENT_LOOP_LATE_IN_LOG = Alert(
    "DfxEventLoopToldLate",
    "warning",
    "progress",
    Compare(_LOGGED_LAG, ">=", _LOGGED_LAG_SECONDS),
    "The framework logs that its event loop was blocked",
    Runbook(
        meaning="The orchestrator's log reports a lag of its event loop of several seconds. This "
        "alert needs only the log. DfxEventLoopLate needs a guest in the process.",
        impact="Requests are sent late and answers are read late: engines idle, clients time out.",
        diagnosis="Attach to the orchestrator: `dfx-agent diagnose` then names the code that "
        "blocked the loop.",
        mitigation="Move the code to a thread or a process (`asyncio.to_thread`, an executor).",
    ),
    listing=Listing(_LOGGED_LAG, "{value:.3g} s at most in the latest step"),
    board=_BOARD,
)
LEARNER_STARVED = Alert(
    "DfxLearnerStarved",
    "warning",
    "progress",
    _has_grown("few requests"),
    "The learner waits for samples, and the engines have too little to do",
    Runbook(
        meaning="The learner waits for samples longer than it used to, and no producer of samples "
        "is slow: fewer rollouts are in flight than before.",
        impact="Learner and engines both idle; each step takes longer by the value below.",
        diagnosis="What limits the rollouts in flight? A staleness budget that is used up, a "
        "concurrency limit or a semaphore that is never released, a client with too few "
        "connections, prompts that arrive late. The board shows queues and running requests.",
        mitigation="Raise the limit or the staleness budget; restart the orchestrator if a slot "
        "was leaked.",
    ),
    for_seconds=_LASTING_SECONDS,
    listing=_amount("few requests"),
    board=_BOARD,
)
ROLLOUT_STALE = Alert(
    "DfxRolloutStale",
    "warning",
    "rollout",
    _has_grown("stale samples"),
    "More samples than before are too old to be trained on",
    Runbook(
        meaning="In the latest steps more groups than before were discarded because the weights "
        "that generated them are too old.",
        impact="Rollout work is wasted: these groups are lost in each step, and the remaining "
        "groups are biased to short answers.",
        diagnosis="Where does the lag arise (board): in flight points at long or slow requests, in "
        "the queue at more rollouts in flight than the learner consumes. Did the learner become "
        "faster, or groups slower?",
        mitigation="Fewer rollouts in flight, partial rollouts, or a larger bound on staleness.",
    ),
    for_seconds=_LASTING_SECONDS,
    listing=_amount("stale samples"),
    board=_BOARD,
)
ENGINE_DEGRADED = Alert(
    "DfxEngineDegraded",
    "warning",
    "progress",  # a replica is one of this node
    _is_found("slow engine", "still engine", "lost engine"),
    "A rollout replica is much slower than the others, moves nothing, or is gone",
    Runbook(
        meaning="One replica permanently takes longer per token than the other replicas of the "
        "same model. Or it holds requests and has processed none of them while the other replicas "
        "continued.",
        impact="Groups wait for their slowest sample: the learner starves, samples grow stale, "
        "clients time out.",
        diagnosis="`dfx-agent diagnose` names the replica and by how much. Clocks, heat and "
        "neighbours of its node; other settings or another version; a KV cache that is full "
        "(preemptions). A replica that moves nothing: its log, and its stacks (py-spy).",
        mitigation="Take the replica out of the router, or restart it.",
    ),
    for_seconds=_LASTING_SECONDS,
    listing=_amount("slow engine", "still engine"),
    inhibits=("DfxLearnerStarved", "DfxRolloutStale"),
    board=_BOARD,
)
WEIGHT_SYNC_GROWN = Alert(
    "DfxWeightSyncGrown",
    "warning",
    "progress",
    _has_grown("weight sync"),
    "Bringing new weights to the engines takes longer than it used to",
    Runbook(
        meaning="Weight sync costs more of each step than before, by more than a tenth of a step.",
        impact="Engines are paused meanwhile, and the learner waits: each step takes longer by "
        "the value below.",
        diagnosis="Which part grew, and to which receiver (board, `dfx-agent diagnose`)? pause: "
        "the engines wait for long requests; gather: ranks of the trainer; transfer to one "
        "receiver: its network or its node; load: the engine.",
        mitigation="Abort or resume requests instead of waiting for them; take the slow receiver "
        "out; send deltas, or in larger parts.",
    ),
    for_seconds=_LASTING_SECONDS,
    listing=_amount("weight sync"),
    board=_BOARD,
)

ALERTS = (
    EVENT_LOOP_LATE,
    EVENT_LOOP_LATE_IN_LOG,
    LEARNER_STARVED,
    ROLLOUT_STALE,
    ENGINE_DEGRADED,
    WEIGHT_SYNC_GROWN,
)
