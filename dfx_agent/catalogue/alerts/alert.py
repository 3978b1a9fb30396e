"""What an alert is: declared once, for the agent, for Prometheus rules and for the runbook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dfx_agent.catalogue import performance, signals, verdicts
from dfx_agent.catalogue.alerts.conditions import (
    Compare,
    Condition,
    Samples,
    Series,
    Unless,
    parts_of,
    series,
)
from dfx_agent.catalogue.spec import Metric

# both alerts must have the same values of these; a label that both lack counts as equal
EQUAL = ("job", "run")
_KINDS: dict[Metric, str] = {
    verdicts.STRAGGLER_LOST_SECONDS: "straggler",
    signals.SYMPTOM_ACTIVE: "divergence",
    signals.NONFINITE_STEPS: "divergence",
}
_VERDICTS = (verdicts.VERDICT_ACTIVE, verdicts.VERDICT_STATE)
Severity = Literal["critical", "warning", "info", "none"]
Area = Literal["stability", "rollout", "memory", "balance", "progress", "data", "agent"]


@dataclass(frozen=True)
class Runbook:
    """What the person who is woken reads, in this order."""

    meaning: str
    impact: str
    diagnosis: str
    mitigation: str


@dataclass(frozen=True)
class Listing:
    """The part of a description that names ranks, stages or steps: one text per series.

    ``text`` holds ``{label}`` and ``{value:FORMAT}``; FORMAT is one that Python and Go both know
    (``.0f``, ``.3g``). Series that are 0 have nothing to say; ``num_largest``: only so many.
    """

    series: Series
    text: str
    num_largest: int | None = None

    def lines(self, samples: Samples) -> list[str]:
        rows = [(labels, value) for labels, value in self.series.select(samples) if value]
        if self.num_largest is not None:
            rows = sorted(rows, key=lambda row: -row[1])[: self.num_largest]
        return [self.text.format(value=value, **labels) for labels, value in rows]


@dataclass(frozen=True)
class Recording:
    """A series that Prometheus makes for an alert; ``promql`` may read its own past."""

    name: str
    promql: str


@dataclass(frozen=True)
class Alert:
    """One alert at one severity; a name may come twice, with different severities.

    How long a training signal must last is inside its series (steps, counted in the agent);
    ``for_seconds`` is for what is not clocked by steps. ``keep_steps`` holds the alert that many
    steps after its condition ended, evaluated here; ``keep_seconds`` is for Prometheus, which
    knows no steps, and bridges a restart of the agent. ``inhibits`` names alerts that are not
    delivered for the same run while this one fires. ``recordings`` are made before, in the same
    group. ``board`` is the uid of the board to open.
    """

    name: str
    severity: Severity
    area: Area
    condition: Condition
    summary: str
    runbook: Runbook
    keep_steps: int = 0
    inhibits: tuple[str, ...] = ()
    for_seconds: int = 0
    keep_seconds: int = 0
    listing: Listing | None = None
    recordings: tuple[Recording, ...] = ()
    board: str = "dfx-stability"


def verdict_kind(alert: Alert) -> str:
    """The kind of the verdict that the condition reads first; "" for none."""
    return next(_kinds(alert), "")


def _kinds(alert: Alert) -> Iterator[str]:
    for part in parts_of(alert.condition, Series):
        if part.metric in _VERDICTS:
            yield from part.where.get("kind", ())
        elif part.metric in _KINDS:
            yield _KINDS[part.metric]


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
    """Inhibitions of the catalogue; a critical alert also inhibits the warning of its own name."""
    all_alerts = list(alerts)
    warnings = {alert.name for alert in all_alerts if alert.severity == "warning"}
    made: list[Inhibition] = []
    for alert in all_alerts:
        if alert.inhibits:
            made.append(Inhibition(alert.name, alert.severity, alert.inhibits))
        if alert.severity == "critical" and alert.name in warnings:
            made.append(Inhibition(alert.name, "critical", (alert.name,), "warning"))
    return made


def inhibited(firing: Sequence[Alert], rules: Iterable[Inhibition]) -> set[int]:
    """Positions in ``firing`` of the alerts that another firing alert inhibits.

    All alerts in ``firing`` have the same ``EQUAL`` labels. As in Alertmanager, an inhibited alert
    still inhibits others.
    """
    active = [rule for rule in rules if any(rule.starts_from(alert) for alert in firing)]
    return {i for i, alert in enumerate(firing) if any(rule.reaches(alert) for rule in active)}


# no alert outlasts its run: what a run that has ended found is history, except how it ended
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
