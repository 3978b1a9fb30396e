"""One job of N >= 1 nodes as people see it: verdicts, and the incidents made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dfx_agent.facts.seat import Seat
from dfx_agent.job.incidents.book import IncidentBook, StepTimes
from dfx_agent.job.incidents.conclude import Judged, conclude
from dfx_agent.job.judging import JobJudge
from dfx_agent.job.step_rows import sustained_ratios
from dfx_agent.judge.bottleneck.judge import BottleneckJudge
from dfx_agent.judge.bottleneck.pipeline_facts import NUM_STEPS, STAGES, pipeline_facts
from dfx_agent.judge.part_of_job import step_origin_text
from dfx_agent.snapshot import AlertRow, Bottleneck, EngineFacts, RunRow, StepRow
from dfx_agent.snapshot.faults import sighted

__all__ = ["NUM_STEPS", "STAGES", "Job", "Measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is concluded from besides the row of a run."""

    now_seconds: float
    """Unix time."""
    steps: Sequence[StepRow]
    """The latest ``NUM_STEPS`` completed steps of every role."""
    stage_seconds: Mapping[tuple[str, str], Mapping[str, float]]
    """(role, rank) -> how long each of ``STAGES`` usually lasts."""
    seats: Collection[Seat]
    """All processes of the job that are shown, logs too."""
    engines: Sequence[EngineFacts] = ()
    doubts: Collection[str] = field(default=())
    """Why nothing may be clear."""


class Job:
    """``alerts`` are those that fire now; None before they were first evaluated."""

    def __init__(self, judge: JobJudge) -> None:
        self.judge = judge
        self.incidents = IncidentBook(judge.run)
        self.alerts: tuple[AlertRow, ...] | None = ()
        self._bottleneck = BottleneckJudge()

    def concluded(self, row: RunRow, measured: Measured) -> RunRow:
        """``row``, which has its verdicts, with all that follows from them."""
        judge, run = self.judge, self.judge.run
        signals, steps = judge.health.state, measured.steps
        judged = Judged(
            row.verdicts, self.alerts, signals, _step_times(row, steps), row.ranks, bool(steps)
        )
        concluded = conclude(self.incidents, judged, measured.now_seconds, measured.doubts)
        faults = judge.faults.rows(run)
        row = replace(
            row,
            signals=signals,
            num_late_signals=judge.health.num_late,
            ledger=judge.ledger.state(),
            faults=faults,
            judged_seconds=judge.faults.judged_seconds(run),
            step_origin=step_origin_text(measured.seats),
            sustained_tokens_ratio=sustained_ratios(steps),
            blind=judge.faults.blindness_of(run),
            **vars(concluded),
        )
        standing = sighted(concluded.standing, faults)
        return replace(row, standing=standing, bottleneck=self._waits_for(row, measured))

    def _waits_for(self, row: RunRow, measured: Measured) -> Bottleneck | None:
        with self.judge.faults.guard("judgement", self.judge.run, "bottleneck"):
            facts = pipeline_facts(
                measured.steps, row.ranks, measured.engines, row.scalars, row.verdicts,
                measured.stage_seconds, measured.now_seconds,
            )  # fmt: skip
            return self._bottleneck.verdict(facts)
        return None


def _step_times(row: RunRow, steps: Iterable[StepRow]) -> StepTimes:
    """Begins of the completed steps, and of those that ranks are in."""
    completed = [(step.role, step.step, step.begin_seconds) for step in steps]
    running = [
        (rank.role, rank.step, rank.step_begin_seconds)
        for rank in row.ranks
        if rank.step is not None and rank.step_begin_seconds is not None
    ]
    return StepTimes((*completed, *running))
