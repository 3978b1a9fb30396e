"""The text of an incident: who, where, since when, its cost, its cause, and what to do.

Cost and action come from the runbook, so the page and the pager show the same text.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

from dfx_agent.base.text import joined, seconds_text
from dfx_agent.catalogue.alerts.alert import Alert, verdict_kind
from dfx_agent.catalogue.alerts.declared import ALERTS
from dfx_agent.catalogue.alerts.declared.progress import RANK_IMBALANCE, STRAGGLER
from dfx_agent.catalogue.alerts.declared.stability import NONFINITE
from dfx_agent.job.incidents import sentences

_BY_NAME: dict[str, Alert] = {alert.name: alert for alert in ALERTS}
_BY_KIND: dict[str, Alert] = {verdict_kind(alert): alert for alert in reversed(ALERTS)}
_MORE_TOKENS = "more tokens"
_RENDEZVOUS = "rendezvous"
_NOT_FINITE = "NaN or Inf"


def cost_of(kind: str, cause: str, lost_seconds: float | None, alert: str) -> str:
    """Cost of the incident, one sentence with a full stop; "" if no runbook states it."""
    if lost_seconds is not None:
        return sentences.COSTS(seconds=seconds_text(lost_seconds))
    found = _alert_on(kind, cause, alert)
    return "" if found is None else _first_sentence(found.runbook.impact)


def origin_of(kind: str, cause: str) -> str:
    """For a divergence: the first signal that moved and its usual meaning; "" otherwise."""
    return f"{cause[:1].upper()}{cause[1:]}." if kind == "divergence" and cause else ""


def action_of(kind: str, cause: str, alert: str) -> str:
    """First action, one sentence with a full stop; "" if no runbook states it."""
    if (kind, cause) == ("hang", _RENDEZVOUS):
        return sentences.RENDEZVOUS_ACTION
    found = _alert_on(kind, cause, alert)
    return "" if found is None else _first_sentence(found.runbook.mitigation)


def runbook_of(kind: str, cause: str, alert: str) -> str:
    """Anchor of the runbook section on this problem; "" if there is none."""
    found = _alert_on(kind, cause, alert)
    return "" if found is None else found.name.lower()


def lasting_seconds(kind: str) -> float:
    """Longest `for` time of the alerts with this name or on this kind of verdict."""
    named = (a.for_seconds for a in ALERTS if kind in {a.name, verdict_kind(a)})
    return float(max(named, default=0))


def sentence_of(
    summary: str,
    lines: Iterable[str],
    since_seconds: float,
    step: int | None,
    conclusion: Iterable[str],
) -> str:
    """The whole text of an incident.

    ``lines`` name the ranks if the summary does not. Lines on signals say since when each signal
    has moved; the first signal may be normal again. ``conclusion``: cost, cause, and action.
    """
    listed = list(dict.fromkeys(lines))
    at = time_text(since_seconds)
    when = at if step is None else f"step {step} ({at})"
    is_of_signals = any("since step" in line for line in listed)
    begun = sentences.FIRST_SIGNAL if is_of_signals else sentences.BEGAN
    return joined([summary, *listed, begun(when=when), *conclusion])


def time_text(seconds: float) -> str:
    """Unix time as UTC text."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _alert_on(kind: str, cause: str, alert: str) -> Alert | None:
    """The alert with this name, else the alert on this kind of verdict."""
    if kind == "straggler":
        return RANK_IMBALANCE if cause == _MORE_TOKENS else STRAGGLER
    if kind == "divergence" and cause.startswith(_NOT_FINITE):
        return NONFINITE
    return _BY_NAME.get(alert) or _BY_KIND.get(kind)


def _first_sentence(text: str) -> str:
    """First sentence; "" for "None.", the runbook entry of alerts that only give context."""
    head, stop, _ = text.partition(". ")
    return "" if head.startswith("None") else head + stop.rstrip() if stop else text
