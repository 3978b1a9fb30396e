"""Samples per second of a run: what the job tells of a step, over the time that the step took."""

from __future__ import annotations

from dfx_agent.snapshot import RunRow

_STEP_SAMPLES = "dfx_step_samples"


def samples_per_second(run: RunRow) -> float | None:
    """Of the newest step whose samples are told and whose end is known; None without such a one.

    Samples are those of the whole step (every framework tells its batch), so ranks that tell them
    too do not add up. Of several roles the one that took longest sets the time.
    """
    for row in run.scalars:
        if row.metric == _STEP_SAMPLES and not any(row.labels.values()):
            took = [s.end_seconds - s.begin_seconds for s in run.steps if s.step == row.step]
            seconds = max(took, default=0.0)
            if seconds > 0.0 and row.moments.count:
                return row.moments.sum / row.moments.count / seconds
    return None
