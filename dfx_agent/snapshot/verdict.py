"""Contract 2: verdicts and what is made of them: incidents, the state of a run, own faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dfx_agent.snapshot import sentences

RunState = Literal["found", "warning", "insufficient evidence", "clear"]
IncidentState = Literal["found", "warning", "noted"]
IncidentSeverity = Literal["critical", "warning", "info"]
FaultPart = Literal["folder", "reading", "judgement", "rendering", "keeping", "device", "engines"]
VerdictKind = Literal["hang", "straggler", "crash", "memory", "divergence", "data"]
NO_STAGE = "outside all stages"
VerdictState = Literal["found", "clear", "insufficient evidence"]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is not certain yet, and blames nobody."""

    ranks: tuple[str, ...]
    since_seconds: float
    """Unix time at which the ranks last moved."""
    limit_seconds: float
    """How long after ``since_seconds`` the verdict becomes "found"."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the agent concludes about one role of a run, and from what.

    ``ranks`` are to blame, ``summary`` is one sentence for people, ``evidence`` the figures behind
    it, one line each. ``cause`` is a stable word; ``lost_seconds`` is per step. ``action`` says
    what to do first; "" where the runbook of the alert says it.
    """

    kind: VerdictKind
    state: VerdictState
    role: str
    summary: str
    ranks: tuple[str, ...] = ()
    stage: str = ""
    cause: str = ""
    step: int | None = None
    since_seconds: float | None = None
    lost_seconds: float | None = None
    evidence: tuple[str, ...] = ()
    action: str = ""
    suspicion: Suspicion | None = None
    """Of an unsure verdict: whom it may find, and when."""

    @property
    def subject(self) -> str:
        """What it is about: of which role, unless it is of all."""
        return f"{self.kind} ({self.role})" if self.role else self.kind

    @property
    def stage_text(self) -> str:
        """The stage in words; "" where it does not matter."""
        return NO_STAGE if self.stage == "idle" else self.stage


@dataclass(frozen=True, slots=True)
class FaultRow:
    """Something of one run (``run`` "": of the agent) that failed when it was last tried.

    ``what`` names it, as in "hang (trainer)" or "rank 3 (trainer)". It has failed ``num_times`` in
    a row, since ``since_seconds`` (Unix time). ``is_blind``: for so long that what is shown of it
    says nothing about now.
    """

    part: FaultPart
    run: str
    what: str
    message: str
    since_seconds: float
    num_times: int
    is_blind: bool


@dataclass(frozen=True, slots=True)
class Blindness:
    """Since when (Unix time) something has not been read or judged, and what, in one line."""

    since_seconds: float
    reason: str


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
    runbook: str = ""
    """Anchor of its section in the runbook; "" where the runbook has none."""
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
