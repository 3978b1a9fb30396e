"""One job of N >= 1 nodes: its verdicts, and the incidents that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from dfx_agent.facts.seat import Seat
from dfx_agent.job.engine_pool import IdleCheck, pool_of
from dfx_agent.job.evidence import JobView
from dfx_agent.job.fold import JobFold
from dfx_agent.job.incidents.book import IncidentBook, StepTimes
from dfx_agent.job.incidents.conclude import Judged, conclude
from dfx_agent.job.rows import JobRows
from dfx_agent.job.step_rows import latest_ratios, sustained_ratios, token_imbalances
from dfx_agent.judge.bottleneck.judge import BottleneckJudge
from dfx_agent.judge.bottleneck.pipeline_facts import NUM_STEPS, STAGES, pipeline_facts
from dfx_agent.judge.part_of_job import step_origin_text
from dfx_agent.snapshot import AlertRow, Bottleneck, EngineFacts, RunRow, StepRow, Verdict
from dfx_agent.snapshot.faults import sighted

__all__ = ["NUM_STEPS", "Job"]


class Job:
    """One job. ``fold`` holds the reports of its nodes, ``judge`` judges them.

    ``alerts`` are the firing alerts; None before their first evaluation.
    """

    def __init__(self, fold: JobFold) -> None:
        self.fold, self.judge = fold, fold.judge
        self.rows = JobRows(fold)
        self.incidents = IncidentBook(fold.run)
        self.alerts: tuple[AlertRow, ...] | None = ()
        self._bottleneck, self._idle_check = BottleneckJudge(), IdleCheck()

    def verdicts(self, view: JobView) -> tuple[Verdict, ...]:
        """Verdicts at the current time, limited to what ``view`` can see."""
        return self.judge.verdicts(self.fold.evidence(), view)

    def concluded(self, row: RunRow, doubts: Collection[str] = ()) -> RunRow:
        """``row`` with everything that follows from its verdicts, for example incidents.

        ``doubts``: reasons why the job must not be shown as clear.
        """
        fold, judge, run = self.fold, self.judge, self.fold.run
        engines = fold.engines()
        signals, steps = judge.health.state, self.rows.latest_steps(NUM_STEPS)
        judged = Judged(
            row.verdicts, self.alerts, signals, _step_times(row, steps), row.ranks, bool(steps)
        )
        concluded = conclude(self.incidents, judged, fold.here_seconds, doubts)
        faults = judge.faults.rows(run)
        row = replace(
            row,
            engines=pool_of(engines, self._idle_check.observe(engines, row.scalars)),
            signals=signals,
            num_late_signals=judge.health.num_late,
            ledger=judge.ledger.state(),
            faults=faults,
            judged_seconds=judge.faults.judged_seconds(run),
            step_origin=step_origin_text(_all_seats(fold)),
            sustained_tokens_ratio=sustained_ratios(steps),
            latest_tokens_ratio=latest_ratios(steps),
            token_imbalance=token_imbalances(steps),
            blind=judge.faults.blindness_of(run),
            **vars(concluded),
        )
        standing = sighted(concluded.standing, faults)
        return replace(row, standing=standing, bottleneck=self._waits_for(row, steps, engines))

    def _waits_for(
        self, row: RunRow, steps: Sequence[StepRow], engines: Sequence[EngineFacts]
    ) -> Bottleneck | None:
        fold = self.fold
        with self.judge.faults.guard("judgement", fold.run, "bottleneck"):
            facts = pipeline_facts(
                steps, row.ranks, engines, row.scalars, row.verdicts,
                fold.stage_seconds(STAGES), fold.here_seconds,
            )  # fmt: skip
            return self._bottleneck.verdict(facts)
        return None


def _all_seats(fold: JobFold) -> list[Seat]:
    return [seat for _, seat in fold.seats(of_connected=False)]


def _step_times(row: RunRow, steps: Iterable[StepRow]) -> StepTimes:
    """Start times of completed steps and of the steps that ranks are in now."""
    completed = [(step.role, step.step, step.begin_seconds) for step in steps]
    running = [
        (rank.role, rank.step, rank.step_begin_seconds)
        for rank in row.ranks
        if rank.step is not None and rank.step_begin_seconds is not None
    ]
    return StepTimes((*completed, *running))
