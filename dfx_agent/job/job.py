"""One job as people see it: what is concluded of it, and the incidents made of that."""

from __future__ import annotations

from dataclasses import replace

from dfx_agent.durations import seconds_text
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.faults import not_green, sighted
from dfx_agent.incidents.book import IncidentBook, StepTimes, standing_of
from dfx_agent.job.fold import JobFold
from dfx_agent.job.judging import JobJudge
from dfx_agent.job.roster import SILENT_SECONDS
from dfx_agent.job.rows import JobRows
from dfx_agent.judge.bottleneck.judge import BottleneckJudge
from dfx_agent.judge.bottleneck.pipeline_facts import STAGES, pipeline_facts
from dfx_agent.snapshot import AlertRow, Bottleneck, RunRow

# a node that is silent for as long is not waited for: what comes later still has queued here
LATE_SECONDS = SILENT_SECONDS + 5.0


class Job:
    """``fold`` takes what nodes tell; ``row`` is what is known of it now."""

    def __init__(self, fold: JobFold) -> None:
        self.fold = fold
        self.alerts: tuple[AlertRow, ...] | None = ()  # None: not evaluated yet
        self._judge = JobJudge(fold)
        self._rows = JobRows(fold)
        self._bottleneck = BottleneckJudge()
        self._incidents = IncidentBook(fold.run)

    def row(self) -> RunRow:
        """Judged anew, as of the instant of its fold."""
        fold = self.fold
        fold.close()
        verdicts = self._judge.verdicts()
        incidents = self._incidents.observe(
            verdicts, self.alerts or (), fold.health.state, self._step_times(), fold.here_seconds
        )
        has_steps = any(steps.rows for steps in fold.steps.values())
        standing = standing_of(verdicts, incidents, has_steps=has_steps)
        if self.alerts is None:
            standing = not_green(standing, "alerts: not evaluated yet")
        if fold.late_seconds > LATE_SECONDS:
            old = seconds_text(fold.late_seconds)
            standing = not_green(
                standing, f"what nodes tell comes {old} late: more than can be taken"
            )
        standing = sighted(standing, fold.faults.rows(fold.run))
        row = self._rows.run(verdicts, incidents, standing)
        return replace(row, bottleneck=self._pipeline(row))

    def _pipeline(self, row: RunRow) -> Bottleneck | None:
        """What the job waits for, by what its nodes tell: engines they do not."""
        fold = self.fold
        with fold.faults.guard("judgement", fold.run, "bottleneck"):
            steps, lasting = self._rows.newest_steps(), fold.stage_seconds(STAGES)
            facts = pipeline_facts(
                steps, row.ranks, (), row.scalars, row.verdicts, lasting, fold.here_seconds
            )
            return self._bottleneck.verdict(facts)
        return None

    def _step_times(self) -> StepTimes:
        """Begins of the closed steps that are kept."""
        return StepTimes(
            tuple(
                (role, step.step, step.begin_seconds)
                for role, steps in self.fold.steps.items()
                for step in steps.rows
                if role != LOG_ROLE
            )
        )
