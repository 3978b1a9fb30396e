"""A step of one role as a row of a Snapshot."""

import pytest

from dfx_agent.facts.steps import IDLE, RankStep
from dfx_agent.job.step_rows import (
    latest_ratios,
    step_row,
    sustained_ratios,
    token_imbalances,
)
from dfx_agent.snapshot import StepCell, StepRow, TimeSplit


def rank_step(active_seconds: float, wall_seconds: float) -> RankStep:
    return RankStep(wall_seconds, 0.0, {IDLE: wall_seconds - active_seconds}, None)


def test_bubble_is_the_share_of_the_ranks_time_in_which_they_were_not_active():
    ranks = {"0": rank_step(2.0, 2.0), "1": rank_step(1.0, 2.0)}
    assert step_row("trainer", 1, (10.0, 12.0), ranks).bubble_ratio == pytest.approx(0.25)


def test_a_bubble_is_never_negative_by_rounding():
    """Seen: -1.8e-8 of an orchestrator that is always active."""
    row = step_row("orchestrator", 1, (10.0, 12.0), {"": rank_step(2.0000001, 2.0)})
    assert row.bubble_ratio == 0.0


def token_rows(*steps: tuple[float, ...]) -> list[StepRow]:
    """Tokens of each rank, step by step."""
    return [
        StepRow(
            number, "trainer", float(number), number + 1.0, (), None,
            tuple(StepCell(str(rank), TimeSplit(), {"response": n}) for rank, n in enumerate(step)),
        )
        for number, step in enumerate(steps)
    ]  # fmt: skip


def test_one_step_with_many_tokens_counts_at_once_and_is_not_sustained():
    rows = token_rows(*[(50.0, 50.0)] * 12, (200.0, 200.0))
    assert latest_ratios(rows) == {"trainer": 4.0}
    assert sustained_ratios(rows) == {"trainer": 1.0}
    assert latest_ratios(rows[:9]) == {}


def test_tokens_of_the_rank_that_has_most_are_compared_with_the_mean_rank():
    uneven, even = (30.0, 10.0), (20.0, 20.0)
    assert token_imbalances(token_rows(*[even] * 8)) == {"trainer": 1.0}
    assert token_imbalances(token_rows(*[uneven] * 5, *[even] * 3)) == {"trainer": 1.5}
    assert token_imbalances(token_rows(*[uneven] * 7)) == {}
    assert token_imbalances(token_rows(*[(5.0,)] * 8)) == {}
