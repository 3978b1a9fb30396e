"""Contract 2: one run: its ranks, closed steps, verdicts and incidents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfx_agent.snapshot.bottleneck import Bottleneck
from dfx_agent.snapshot.engines import EnginePool
from dfx_agent.snapshot.health import SignalState
from dfx_agent.snapshot.rank import LedgerState, RankRow
from dfx_agent.snapshot.scalars import ScalarRow
from dfx_agent.snapshot.time import TimeSplit
from dfx_agent.snapshot.verdict import UNJUDGED, Blindness, FaultRow, Incident, Standing, Verdict


@dataclass(frozen=True, slots=True)
class StepCell:
    """One rank within one step."""

    rank: str
    split: TimeSplit
    tokens: Mapping[str, float]
    num_samples: float | None = None
    """Rows that trained forward passes took in; None where none were counted."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A closed step of one role. ``missing_ranks`` never reached its end (dead or stuck)."""

    step: int
    role: str
    begin_seconds: float
    end_seconds: float
    missing_ranks: tuple[str, ...]
    bubble_ratio: float | None
    cells: tuple[StepCell, ...]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One training run."""

    run: str
    framework: str
    attempt: int
    begin_seconds: float
    ranks: tuple[RankRow, ...]
    steps: tuple[StepRow, ...]
    """The latest closed steps, oldest first."""
    scalars: tuple[ScalarRow, ...]
    num_stale_scalars: int = 0
    verdicts: tuple[Verdict, ...] = ()
    signals: SignalState | None = None
    """None until the run has reported a metric that a signal is computed from."""
    ledger: LedgerState | None = None
    num_late_signals: int = 0
    """Values that arrived after their step had been judged."""
    sustained_tokens_ratio: Mapping[str, float] = field(default_factory=dict)
    latest_tokens_ratio: Mapping[str, float] = field(default_factory=dict)
    """Role -> tokens of the latest step / median before."""
    token_imbalance: Mapping[str, float] = field(default_factory=dict)
    """Role -> tokens of the rank with most / mean of the ranks, over the latest 8 steps."""
    """Role -> tokens of the latest two steps / median before."""
    faults: tuple[FaultRow, ...] = ()
    judged_seconds: Mapping[str, float] = field(default_factory=dict)
    """Kind of verdict -> Unix time of the last judgement."""
    incidents: tuple[Incident, ...] = ()
    """Each joins verdicts and alerts about one problem."""
    standing: Standing = UNJUDGED
    """The only field that decides whether anything is shown green."""
    blind: Blindness | None = None
    dropped_ranks: tuple[DroppedRanks, ...] = ()
    engines: EnginePool | None = None
    """None without rollout engines on this node."""
    bottleneck: Bottleneck | None = None
    """None before steps."""
    part: str = ""
    """Which part of the job this covers, as a sentence; "" for the whole job."""
    step_origin: str = ""
    """Where its step numbers come from, as a sentence, if the job's own number is unknown."""
    past_incidents: tuple[Incident, ...] = ()
    """Incidents that are over, latest first."""
    ending: str = ""
    """When and how the run ended, as a sentence; "" while it runs."""


@dataclass(frozen=True, slots=True)
class RunVerdicts:
    """The conclusions about one run, without the rows of its ranks."""

    run: str
    standing: Standing
    verdicts: tuple[Verdict, ...]
    incidents: tuple[Incident, ...]
    past_incidents: tuple[Incident, ...] = ()
    ending: str = ""

    @classmethod
    def from_row(cls, row: RunRow) -> RunVerdicts:
        return cls(
            row.run, row.standing, row.verdicts, row.incidents, row.past_incidents, row.ending
        )


@dataclass(frozen=True, slots=True)
class DroppedRanks:
    """Exited processes of one role that were dropped; the last to exit stay in ``RunRow.ranks``.

    ``num_ranks`` never decreases. Records are those of processes whose totals are in no other row.
    """

    role: str
    num_ranks: int
    num_records: int
    num_lost_records: int
