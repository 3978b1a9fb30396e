"""One job as people see it: what is concluded of it, and the incidents made of that."""

from __future__ import annotations

from dataclasses import replace

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.job.fold import JobFold
from dfx_agent.job.incidents import sentences
from dfx_agent.job.incidents.book import IncidentBook, StepTimes
from dfx_agent.job.incidents.conclude import Conclusion, Judged, conclude
from dfx_agent.job.judging import JobJudge
from dfx_agent.job.roster import SILENT_SECONDS
from dfx_agent.job.rows import JobRows
from dfx_agent.judge.bottleneck.judge import BottleneckJudge
from dfx_agent.judge.bottleneck.pipeline_facts import STAGES, pipeline_facts
from dfx_agent.snapshot import AlertRow, Bottleneck, RunRow
from dfx_agent.snapshot.faults import sighted

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
        row = self._rows.run(verdicts)
        row = replace(row, **vars(self._conclusion(row)))
        row = replace(row, standing=sighted(row.standing, fold.faults.rows(fold.run)))
        return replace(row, bottleneck=self._pipeline(row))

    def _conclusion(self, row: RunRow) -> Conclusion:
        fold, late_seconds = self.fold, self.fold.late_seconds
        is_late = late_seconds > LATE_SECONDS
        judged = Judged(
            row.verdicts,
            self.alerts,
            fold.health.state,
            self._step_times(),
            row.ranks,
            has_steps=any(steps.rows for steps in fold.steps.values()),
        )
        late = [sentences.LATE_FACTS(late=seconds_text(late_seconds))] if is_late else []
        return conclude(self._incidents, judged, fold.here_seconds, late)

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
