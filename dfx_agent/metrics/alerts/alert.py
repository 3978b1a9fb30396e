"""What an alert is: declared once, for the agent, for Prometheus rules and for the runbook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dfx_agent.metrics.alerts.conditions import Condition

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True)
class Runbook:
    """What the person who is woken reads, in this order."""

    meaning: str
    impact: str
    diagnosis: str
    mitigation: str


@dataclass(frozen=True)
class Alert:
    """One alert at one severity; a name may come twice, with different severities.

    How long something must last before it counts is inside the series (steps, counted in the
    agent), so there is no "for". ``keep_steps`` holds the alert that many steps after its condition
    ended. ``inhibits`` names alerts that are not delivered for the same run while this one fires.
    """

    name: str
    severity: Severity
    area: Literal["stability", "rollout"]
    condition: Condition
    summary: str
    runbook: Runbook
    keep_steps: int = 0
    inhibits: tuple[str, ...] = ()
