"""No alert outlasts its run: what a run that has ended found is history, except how it ended."""

from __future__ import annotations

from dataclasses import replace

from dfx_agent.catalogue import performance
from dfx_agent.catalogue.alerts.alert import Alert, verdict_kind
from dfx_agent.catalogue.alerts.conditions import Compare, Unless, series

_LIVE = series(performance.RUN_LIVE)
# every node says that its part has ended, none that a process lives
RUN_ENDED = Unless(Compare(_LIVE, "<=", 0), Compare(_LIVE, ">", 0))


def is_about_the_end(alert: Alert) -> bool:
    """Whether the alert stays when the run has ended: a crash, and alerts about agents."""
    return alert.area == "agent" or verdict_kind(alert) == "crash"


def until_end(alert: Alert) -> Alert:
    """The alert, which does not hold any more once the run has ended."""
    if is_about_the_end(alert):
        return alert
    return replace(alert, condition=Unless(alert.condition, RUN_ENDED))
