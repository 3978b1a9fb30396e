"""One job of a hub: what its nodes report, and the row that follows from it."""

from __future__ import annotations

from dfx_agent.base.text import seconds_text
from dfx_agent.job.hub_view import HubView
from dfx_agent.job.incidents import sentences
from dfx_agent.job.job import Job
from dfx_agent.job.roster import SILENT_SECONDS
from dfx_agent.snapshot import RunRow

# a node without a report for this long is not waited for: later reports are queued in the hub
LATE_SECONDS = SILENT_SECONDS + 5.0


class HubJob(Job):
    """One job of a hub; ``row`` evaluates it."""

    def row(self) -> RunRow:
        """The row of the job, judged at the current time of its fold."""
        fold = self.fold
        fold.close()
        ranks = fold.ranks()
        view = HubView(fold, {role: facts for role, facts in ranks.items() if facts is not None})
        # a rank that is not visible may make progress
        quiet_seconds = 0.0 if view.is_unsure else fold.quiet_seconds
        self.judge.judge_waits(ranks, quiet_seconds, fold.now_ns / 1e9)
        late = fold.late_seconds
        doubts = [sentences.LATE_FACTS(late=seconds_text(late))] if late > LATE_SECONDS else []
        return self.concluded(self.rows.run(self.verdicts(view), self.rows.ranks()), doubts=doubts)
