"""Tokens of the newest two steps against the 32 before."""

import pytest

from dfx_agent.job.step_rows import sustained_ratios
from dfx_agent.snapshot import StepCell, StepRow, TimeSplit


def rows(*counts, role="trainer", missing=()):
    """Two ranks, half of the tokens each, prompts and responses."""
    half = [{"prompt": count / 8, "response": count * 3 / 8} for count in counts]
    return [
        StepRow(step, role, step, step + 1, missing, None,
                tuple(StepCell(rank, TimeSplit(), tokens) for rank in "01"))
        for step, tokens in enumerate(half)
    ]  # fmt: skip


def test_two_steps_in_a_row_count_and_the_smaller_of_them():
    assert sustained_ratios(rows(*[1000] * 30, 2500, 2100)) == {"trainer": pytest.approx(2.1)}
    assert sustained_ratios(rows(*[1000] * 30, 900, 9000)) == {"trainer": pytest.approx(0.9)}
    assert sustained_ratios(rows(*[1000] * 30, 9000, 900)) == {"trainer": pytest.approx(0.9)}


def test_one_odd_step_before_does_not_move_the_median():
    assert sustained_ratios(rows(*[1000] * 20, 50_000, 1000, 1000)) == {"trainer": 1}


def test_nothing_is_said_before_10_steps_or_without_tokens():
    assert sustained_ratios(rows(*[1000] * 9)) == {}
    assert sustained_ratios(rows(*[1000] * 10)) == {"trainer": 1}
    assert sustained_ratios(rows(*[0] * 40)) == {}


def test_a_step_that_a_rank_did_not_finish_is_left_out():
    whole = rows(*[1000] * 12)
    assert sustained_ratios([*whole, *rows(100, 100, missing=("1",))]) == {"trainer": 1}


def test_roles_are_apart():
    both = [*rows(*[10] * 12), *rows(*[10] * 10, 30, 30, role="critic")]
    assert sustained_ratios(both) == {"trainer": 1, "critic": 3}
