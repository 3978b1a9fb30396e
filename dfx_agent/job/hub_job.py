"""One job of a hub: what its nodes report, and the row that follows from it."""

from __future__ import annotations

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.job.fold import JobFold
from dfx_agent.job.hub_view import HubView
from dfx_agent.job.incidents import sentences
from dfx_agent.job.job import NUM_STEPS, STAGES, Job, Measured
from dfx_agent.job.roster import SILENT_SECONDS
from dfx_agent.job.rows import JobRows
from dfx_agent.snapshot import RunRow

# a node that is silent for as long is not waited for: what comes later still has queued here
LATE_SECONDS = SILENT_SECONDS + 5.0


class HubJob(Job):
    """``fold`` takes what nodes tell; ``row`` is what is known of it now."""

    def __init__(self, fold: JobFold) -> None:
        super().__init__(fold.judge)
        self.fold = fold
        self._rows = JobRows(fold)

    def row(self) -> RunRow:
        """Judged anew, as of the instant of its fold."""
        fold = self.fold
        fold.close()
        ranks = {role: facts for role, facts in fold.ranks().items() if role != LOG_ROLE}
        view = HubView(fold, ranks)
        # a rank that is not seen may move
        quiet_seconds = 0.0 if view.is_unsure else fold.quiet_seconds
        self.judge.judge_waits(ranks, quiet_seconds, fold.now_ns / 1e9)
        row = self._rows.run(self.judge.verdicts(fold.evidence(ranks), view))
        late = fold.late_seconds
        measured = Measured(
            now_seconds=fold.here_seconds,
            steps=self._rows.newest_steps(NUM_STEPS),
            stage_seconds=fold.stage_seconds(STAGES),
            seats=[seat for _, seat in fold.seats(of_heard=False)],
            doubts=[sentences.LATE_FACTS(late=seconds_text(late))] if late > LATE_SECONDS else [],
        )
        return self.concluded(row, measured)
