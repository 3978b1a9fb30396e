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
    """One training run; ``steps`` are the newest closed steps, oldest first.

    ``signals`` is None until the run reported a metric that a signal is made of;
    ``num_late_signals`` came after their step was judged; ``sustained_tokens_ratio`` is role ->
    tokens of the newest two steps / median before, ``judged_seconds`` kind of verdict -> Unix time.
    ``engines`` is None for a run without rollout engines on this node, ``bottleneck`` before steps.
    ``incidents`` join verdicts and alerts; ``standing`` alone says whether anything is green.
    ``part``: of what part of the job all this is, as in "Of this node only: 4 of 8 ranks are seen
    here."; "" of the whole.
    """

    run: str
    framework: str
    attempt: int
    begin_seconds: float
    ranks: tuple[RankRow, ...]
    steps: tuple[StepRow, ...]
    scalars: tuple[ScalarRow, ...]
    num_stale_scalars: int = 0
    verdicts: tuple[Verdict, ...] = ()
    signals: SignalState | None = None
    ledger: LedgerState | None = None
    num_late_signals: int = 0
    sustained_tokens_ratio: Mapping[str, float] = field(default_factory=dict)
    faults: tuple[FaultRow, ...] = ()
    judged_seconds: Mapping[str, float] = field(default_factory=dict)
    incidents: tuple[Incident, ...] = ()
    standing: Standing = UNJUDGED
    blind: Blindness | None = None
    dropped_ranks: tuple[DroppedRanks, ...] = ()
    engines: EnginePool | None = None
    bottleneck: Bottleneck | None = None
    part: str = ""
    step_origin: str = ""
    """From where its steps are counted, in a sentence, where the job's own number is unknown."""
    past_incidents: tuple[Incident, ...] = ()
    """Incidents that are over, the newest first."""
    ending: str = ""
    """When and how the run ended, in a sentence; "" while it lasts."""


@dataclass(frozen=True, slots=True)
class RunVerdicts:
    """What is concluded of one run, without the rows of its ranks: short however many it has."""

    run: str
    standing: Standing
    verdicts: tuple[Verdict, ...]
    incidents: tuple[Incident, ...]
    past_incidents: tuple[Incident, ...] = ()
    ending: str = ""

    @classmethod
    def of(cls, row: RunRow) -> RunVerdicts:
        return cls(
            row.run, row.standing, row.verdicts, row.incidents, row.past_incidents, row.ending
        )


@dataclass(frozen=True, slots=True)
class DroppedRanks:
    """Ended processes of one role that were let go: the newest stay in ``RunRow.ranks``.

    ``num_ranks`` only grows. Records are those of processes whose totals are in no row of a rank.
    """

    role: str
    num_ranks: int
    num_records: int
    num_lost_records: int
