"""What an alert is: declared once, for the agent, for Prometheus rules and for the runbook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dfx_agent.rules.conditions import Condition, Samples, Series

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
        told = [(labels, value) for labels, value in self.series.select(samples) if value]
        if self.num_largest is not None:
            told = sorted(told, key=lambda row: -row[1])[: self.num_largest]
        return [self.text.format(value=value, **labels) for labels, value in told]


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
