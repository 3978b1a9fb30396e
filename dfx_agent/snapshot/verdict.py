"""Contract 2: what was concluded, of what kind, and in which state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VerdictKind = Literal["hang", "straggler", "crash", "memory", "divergence", "data"]
NO_STAGE = "outside all stages"
VerdictState = Literal["found", "clear", "insufficient evidence"]


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

    @property
    def subject(self) -> str:
        """What it is about: of which role, unless it is of all."""
        return f"{self.kind} ({self.role})" if self.role else self.kind

    @property
    def stage_text(self) -> str:
        """The stage in words; "" where it does not matter."""
        return NO_STAGE if self.stage == "idle" else self.stage
