"""Contract 2: verdicts, incidents, the standing of a run, and failures of the agent itself."""

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
    """A suspicion that blames no rank yet."""

    ranks: tuple[str, ...]
    since_seconds: float
    """Unix time at which the ranks last made progress."""
    limit_seconds: float
    """Time after ``since_seconds`` at which the verdict becomes "found"."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A conclusion about one role of a run, with its evidence."""

    kind: VerdictKind
    state: VerdictState
    role: str
    summary: str
    """One sentence for people."""
    ranks: tuple[str, ...] = ()
    """The ranks to blame."""
    stage: str = ""
    cause: str = ""
    """A stable word for programs."""
    step: int | None = None
    since_seconds: float | None = None
    lost_seconds: float | None = None
    """Per step."""
    evidence: tuple[str, ...] = ()
    """Values behind the conclusion, one line each."""
    action: str = ""
    """What to do first; "" if the alert's runbook says it."""
    suspicion: Suspicion | None = None
    """For an unsure verdict: which ranks it may blame, and when."""

    @property
    def subject(self) -> str:
        """Kind and role of the verdict."""
        return f"{self.kind} ({self.role})" if self.role else self.kind

    @property
    def stage_text(self) -> str:
        """The stage in words; "" if the verdict is about no stage."""
        return NO_STAGE if self.stage == "idle" else self.stage


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A task of the agent that failed when it last ran."""

    part: FaultPart
    run: str
    """"" if the task belongs to no run."""
    what: str
    """The task, for example "hang (trainer)" or "rank 3 (trainer)"."""
    message: str
    since_seconds: float
    num_times: int
    """Consecutive failures since ``since_seconds``."""
    is_blind: bool
    """It has failed for so long that its results say nothing about the present."""


@dataclass(frozen=True, slots=True)
class Blindness:
    """Since when (Unix time) something has not been read or judged, and why, in one line."""

    since_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One problem from begin to end, with the verdict and all alerts about it."""

    id: str
    """Does not change while the incident continues."""
    kind: str
    """Kind of the verdict, or name of the alert if no verdict is about it."""
    state: IncidentState
    """"found" for a verdict or critical alert, "warning" for other alerts, "noted" for context
    that is sent to nobody."""
    severity: IncidentSeverity
    role: str
    ranks: tuple[str, ...]
    stage: str
    cause: str
    since_seconds: float
    """Unix time of the event that began it; only replaced by an earlier event."""
    step: int | None
    """Step in which it began."""
    lost_seconds: float | None
    """Per step."""
    summary: str
    """Which ranks and where, now."""
    cost: str
    action: str
    sentence: str
    """All of it: who, where, since when, cost, action."""
    alerts: tuple[str, ...]
    """Names of the alerts that fire."""
    evidence: tuple[str, ...]
    headline: str = ""
    """Who and what, in at most 12 words: the beginning of ``summary``."""
    end_seconds: float | None = None
    """Unix time at which it ended; None while it continues."""
    runbook: str = ""
    """Anchor of its section in the runbook; "" where the runbook has none."""
    is_until_run_end: bool = False
    """Whether it still continued when the run ended."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a run now, with reasons in full sentences. Only ``state`` decides on green.

    - "found", "warning": the sentence of the worst incident. For an ended run this includes
      incidents that lasted until its end.
    - "insufficient evidence": what is missing.
    - "clear": judged just now, from enough data, and nothing was found.
    """

    state: RunState
    reason: str


UNJUDGED = Standing("insufficient evidence", sentences.NOTHING_JUDGED())
