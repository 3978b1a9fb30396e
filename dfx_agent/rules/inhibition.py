"""Which alert speaks for which others of the same job and run: for the agent and Alertmanager."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dfx_agent.rules.alert import Alert, Severity

# both alerts must have the same values of these; a label that both lack counts as equal
EQUAL = ("job", "run")


@dataclass(frozen=True)
class Inhibition:
    """While ``source`` fires at ``severity``, alerts named in ``targets`` are not delivered.

    ``target_severity``: only at this severity; None for every one.
    """

    source: str
    severity: Severity
    targets: tuple[str, ...]
    target_severity: Severity | None = None

    def starts_from(self, alert: Alert) -> bool:
        return (alert.name, alert.severity) == (self.source, self.severity)

    def reaches(self, alert: Alert) -> bool:
        severities = (None, alert.severity)
        return alert.name in self.targets and self.target_severity in severities


def inhibitions(alerts: Iterable[Alert]) -> list[Inhibition]:
    """What the catalogue says, and that a page speaks for the warning of its own name."""
    known = list(alerts)
    warnings = {alert.name for alert in known if alert.severity == "warning"}
    made: list[Inhibition] = []
    for alert in known:
        if alert.inhibits:
            made.append(Inhibition(alert.name, alert.severity, alert.inhibits))
        if alert.severity == "critical" and alert.name in warnings:
            made.append(Inhibition(alert.name, "critical", (alert.name,), "warning"))
    return made


def inhibited(firing: Sequence[Alert], rules: Iterable[Inhibition]) -> set[int]:
    """Places in ``firing``, alerts with equal ``EQUAL``, of those that another one speaks for.

    As in Alertmanager, one that is inhibited itself goes on inhibiting.
    """
    active = [rule for rule in rules if any(rule.starts_from(alert) for alert in firing)]
    return {i for i, alert in enumerate(firing) if any(rule.reaches(alert) for rule in active)}
