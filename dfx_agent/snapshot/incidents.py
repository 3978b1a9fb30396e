"""Contract 2: what people are told: the incidents of a run, and the one state it is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dfx_agent.snapshot import sentences

RunState = Literal["found", "warning", "insufficient evidence", "clear"]
IncidentState = Literal["found", "warning", "noted"]
IncidentSeverity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Incident:
    """One problem from its begin to its end: what the verdict and the alerts on it say together.

    ``kind`` is the verdict's, or the alert's name where no verdict is about it. ``state`` is
    "found" for a verdict or a critical alert, "warning" for alerts that warn, "noted" for context
    that is sent to nobody. ``since_seconds`` (Unix time of the event, not of its arrival) and
    ``step`` are where it began: they give way to an earlier event only, ``id`` stays as long as it
    lasts. ``summary`` says who and where now,
    ``sentence`` all: who, where, since when, what it costs, what to do. ``lost_seconds`` is per
    step. ``alerts`` are the names of those that fire.
    """

    id: str
    kind: str
    state: IncidentState
    severity: IncidentSeverity
    role: str
    ranks: tuple[str, ...]
    stage: str
    cause: str
    since_seconds: float
    step: int | None
    lost_seconds: float | None
    summary: str
    cost: str
    action: str
    sentence: str
    alerts: tuple[str, ...]
    evidence: tuple[str, ...]
    end_seconds: float | None = None
    """Unix time at which it was over; None while it lasts."""
    is_until_run_end: bool = False
    """Whether it was not over when the run ended."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a run is in now, and why in full sentences. Only ``state`` decides what is green.

    "found" and "warning": the worst incident's sentence, of a run that has ended also of an
    incident that lasted until its end. "insufficient evidence": what is missing; "clear" means
    judged just now, from enough, and nothing found; what is only noted is added.
    """

    state: RunState
    reason: str


UNJUDGED = Standing("insufficient evidence", sentences.NOTHING_JUDGED())
