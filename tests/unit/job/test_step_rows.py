"""A step of one role as a row of a Snapshot."""

import pytest

from dfx_agent.facts.steps import RankStep
from dfx_agent.job.step_rows import step_row
from dfx_agent.snapshot import TimeSplit


def rank_step(active_seconds: float, wall_seconds: float) -> RankStep:
    split = TimeSplit(wall_seconds, active_seconds, wall_seconds - active_seconds, {}, {})
    return RankStep(wall_seconds, 0.0, {}, None, split=split)


def test_bubble_is_the_share_of_the_ranks_time_in_which_they_were_not_active():
    ranks = {"0": rank_step(2.0, 2.0), "1": rank_step(1.0, 2.0)}
    assert step_row("trainer", 1, (10.0, 12.0), ranks).bubble_ratio == pytest.approx(0.25)


def test_a_bubble_is_never_negative_by_rounding():
    """Seen: -1.8e-8 of an orchestrator that is always active."""
    row = step_row("orchestrator", 1, (10.0, 12.0), {"": rank_step(2.0000001, 2.0)})
    assert row.bubble_ratio == 0.0
