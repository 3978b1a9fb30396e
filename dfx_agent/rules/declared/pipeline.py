"""Alerts on what holds an asynchronous pipeline together."""

from dfx_agent.catalogue import event_loop
from dfx_agent.rules.alert import Alert, Listing, Runbook
from dfx_agent.rules.conditions import Compare, series
from dfx_agent.rules.thresholds import Threshold

_LAG_SECONDS = Threshold(
    "event_loop_lag_seconds", 0.5, "seconds",
    "an event loop that others wait for is late by this or more in 1 % of a minute",
)  # fmt: skip
# a trainer may run its steps in its loop: nobody waits for that one
_AWAITED = ("orchestrator", "driver", "collector", "environment", "rollout", "reward")
_LASTING_SECONDS = 30

EVENT_LOOP_LATE = Alert(
    "DfxEventLoopLate",
    "warning",
    "progress",
    Compare(series(event_loop.LAG_SECONDS, stat="p99", role=_AWAITED), ">=", _LAG_SECONDS),
    "An event loop is held up",
    Runbook(
        meaning="Code that does not give way runs in the event loop of a process, or its threads "
        "keep the interpreter busy. Everything else in that loop waits meanwhile.",
        impact="Requests are sent late and answers are taken late: engines idle, clients time out, "
        "heartbeats are missed.",
        diagnosis="`dfx-agent diagnose` names the code that held the loop and for how long. Large "
        "JSON or pickle payloads, string building and tokenizing are usual.",
        mitigation="Move the code to a thread or a process (`asyncio.to_thread`, an executor), cut "
        "it into parts, or use fewer threads.",
    ),
    for_seconds=_LASTING_SECONDS,
    listing=Listing(series(event_loop.HELD_SECONDS, role=_AWAITED), "{holder}: {value:.1f} s"),
    board="dfx-e2e",
)

ALERTS = (EVENT_LOOP_LATE,)
