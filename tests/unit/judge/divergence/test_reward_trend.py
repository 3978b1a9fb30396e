"""Where the reward goes, row by row: improving, fallen, and what a restart takes back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_json import through_json

from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.judge.divergence.collapse import lasting
from dfx_agent.judge.divergence.reward_trend import (
    DRAWDOWN_STEPS,
    IMPROVING_MEDIAN_Z,
    IMPROVING_STEPS,
    IMPROVING_Z,
    PERSISTENT_STEPS,
    RewardTrend,
)

ROWS = st.lists(st.tuples(st.none() | st.floats(-2, 2), st.none() | st.floats(-5, 5)), max_size=40)


def followed(rows, trend: RewardTrend | None = None, first: int = 0) -> RewardTrend:
    trend = trend or RewardTrend()
    for step, (value, z) in enumerate(rows, start=first):
        trend.observe(step, value, z, 0.0)
    return trend


def scored(*zs: float) -> RewardTrend:
    return followed([(0.5, z) for z in zs])


def of_values(values, smallest: float = 0.0) -> RewardTrend:
    trend = RewardTrend()
    for step, value in enumerate(values):
        trend.observe(step, value, None, smallest)
    return trend


def is_improving(trend: RewardTrend) -> bool | None:
    return trend.is_improving(is_latched=False)


def test_nothing_is_known_before_a_row_was_scored():
    trend = of_values([0.5] * 9)
    assert (is_improving(trend), trend.is_improving(is_latched=True)) == (None, None)
    trend.observe(9, None, None, 0.0)
    assert is_improving(trend) is None
    assert is_improving(scored(0.0)) is False


@pytest.mark.parametrize(
    ("zs", "expected"),
    [
        ([9, 9], False),  # two rows
        ([-9, 2.1, 9], True),  # the median of three
        ([9, 9, 9, 2, 2, 9], True),  # three rows ago it was
        ([2, 9, 2], False),  # at 2
        ([1.1] * 9, False),
        ([1.1] * 10, True),
        ([1.0] * 10, False),
        ([-9] * 4 + [1.1] * 6, True),
    ],
)
def test_three_high_rows_or_ten_that_are_up(zs, expected):
    assert (IMPROVING_Z, IMPROVING_MEDIAN_Z, IMPROVING_STEPS) == (2.0, 1.0, 10)
    assert is_improving(scored(*zs)) is expected


def test_it_holds_for_ten_rows_without_a_reward_too():
    trend = scored(9, 9, 9)
    for step in range(3, 2 + IMPROVING_STEPS):
        trend.observe(step, None, None, 0.0)
        assert is_improving(trend) is True
    trend.observe(99, None, None, 0.0)
    assert is_improving(trend) is False


def test_while_a_page_is_on_only_eight_rows_in_a_row_count():
    for num_high, expected in ((PERSISTENT_STEPS, False), (PERSISTENT_STEPS + 2, True)):
        zs = [9] * num_high
        assert scored(*zs[:-1]).is_improving(is_latched=True) is False
        assert scored(*zs).is_improving(is_latched=True) is expected
        assert scored(*zs, *[-9] * 6).is_improving(is_latched=True) is False


def test_a_fall_ends_improving():
    rows = [(0.5, 9.0)] * 6
    assert is_improving(followed(rows)) is True
    fallen = followed([*rows, (0.1, 0.0), (0.1, 0.0)])
    assert is_improving(fallen) is False
    assert fallen.is_improving(is_latched=True) is False
    small = followed([*rows, (0.46, 0.0), (0.46, 0.0)])
    assert is_improving(small) is True, "less than three changes, of a sixtieth at least"


def test_a_reward_that_takes_off_is_as_noisy_as_its_newest_rows():
    """64 rows of next to no success say nothing of the noise of a share of a third."""
    quiet = [(0.01, 0.0), (0.02, 0.0)] * 30
    risen = [(0.2, 4.0), (0.32, 6.0), (0.22, 4.0), (0.34, 6.0), (0.24, 4.0), (0.36, 6.0)] * 2
    assert is_improving(followed([*quiet, *risen, (0.23, 4.0), (0.2, 4.0)])) is True
    assert is_improving(followed([*quiet, *risen, *[(0.0, 0.0)] * 4])) is False


def rising_then(*values: float) -> list[float]:
    """To 0.9 within ten rows, and there for ten."""
    return [*(0.09 * n for n in range(1, 11)), *[0.9] * 10, *values]


@pytest.mark.parametrize(
    ("values", "fall_step"),
    [
        (rising_then(0.1, 0.1, 0.1), None),  # two rows low, as the median of three follows late
        (rising_then(0.1, 0.1, 0.1, 0.1), 20),
        (rising_then(0.1, 0.9, 0.1, 0.9, 0.9, 0.9), None),  # single rows decide nothing
        (rising_then(0.59, 0.59, 0.59, 0.59), None),  # less than half of 0.9 - 0.27
        (rising_then(0.58, 0.58, 0.58, 0.58), 20),
        (rising_then(0.8, 0.6, 0.4, 0.1, 0.1, 0.1, 0.1), 21),  # 0.8 is one usual change
        ([0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1], 3),
        ([0.5] * 20 + [0.45] * 9, None),  # not six changes
        ([0.5] * 20 + [0.39] * 9, 20),
    ],
)
def test_a_fall_below_half_of_what_was_gained_is_one_after_three_rows(values, fall_step):
    assert DRAWDOWN_STEPS == 3
    assert of_values(values).fall_step == fall_step


def test_a_recovery_ends_it_and_the_next_fall_begins_anew():
    values = rising_then(0.1, 0.1, 0.1, 0.1)
    assert of_values([*values, 0.9, 0.9]).fall_step is None
    assert of_values([*values, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1]).fall_step == 27


def test_a_coarse_reward_may_fall_by_its_own_steps():
    values = [0.5] * 20 + [0.3] * 9
    assert of_values(values).fall_step == 20
    assert of_values(values, smallest=0.25).fall_step is None


def test_cleared_what_is_now_is_the_start():
    trend = of_values(rising_then(0.1, 0.1, 0.1, 0.1))
    trend.clear()
    assert trend.save() == RewardTrend().save()
    known = scored(9, 9, 9)
    known.clear()
    assert is_improving(known) is False


@pytest.mark.parametrize("step", [20, 21, 22])
def test_a_restart_takes_the_fall_back(step):
    trend = of_values(rising_then(0.1, 0.1, 0.1, 0.1))
    trend.rewind(step)
    assert trend.fall_step is None
    stored = trend.save()
    assert all(row[0] < step for row in (*stored.values, *stored.levels))
    assert len(stored.levels) == step - 2
    assert stored.best == pytest.approx(0.9)
    trend.rewind(0)
    assert (trend.save().values, trend.save().best) == ((), None)


@given(ROWS, ROWS)
def test_loaded_state_continues_as_before(rows, later):
    trend, loaded = followed(rows), RewardTrend()
    loaded.resume(through_json(trend.save()))
    assert repr(loaded.save()) == repr(trend.save())
    for item in (trend, loaded):
        followed(later, item, first=len(rows))
    assert repr(loaded.save()) == repr(trend.save())
    assert (is_improving(loaded), loaded.fall_step) == (is_improving(trend), trend.fall_step)


def test_a_best_level_of_a_few_lucky_rows_is_no_level_that_was_held():
    steady = [10.0, 14.0] * 20
    lucky = [*steady, 60.0, 60.0, 60.0, *steady]
    assert not of_values(lucky).is_far_below_held
    assert of_values([*[0.0] * 5, *[60.0, 64.0] * 15, *steady]).is_far_below_held


def test_the_held_level_is_unknown_before_twenty_rows():
    assert of_values([1.0] * 19).is_far_below_held
    assert not of_values([1.0] * 20).is_far_below_held


def reward_fall_steps(*parts: tuple[int, float]) -> list[int]:
    """Steps in which the state "reward fall" pages; parts of (rows, lowest reward of the part)."""
    bank, rng = SignalBank(), random.Random(1)
    rewards = [rng.uniform(low, low + 4) for num_rows, low in parts for _ in range(num_rows)]
    states = [bank.observe(step, {"reward": reward}) for step, reward in enumerate(rewards)]
    return [s.step for s in states if any(c.kind == "reward_fall" for c in lasting(s.collapses))]


def test_a_reward_that_was_lucky_for_four_rows_has_not_fallen_for_good():
    assert not reward_fall_steps((60, 10), (4, 90), (60, 10))


def test_a_reward_that_fell_below_a_level_that_it_held_pages_after_twenty_rows():
    assert reward_fall_steps((10, 0), (60, 40), (60, 5))[0] == 90


NEAR_ZERO = [0.1, 0.15, 0.12, 0.2] * 4  # a range of 0.1


@pytest.mark.parametrize(
    ("values", "jump_step"),
    [
        ([*NEAR_ZERO, 5.7, 6.6], 16),
        ([*NEAR_ZERO, 5.7, 0.2, 6.6], None),  # a single row decides nothing
        ([*NEAR_ZERO, 0.9, 0.9], None),  # an accuracy that is learned at once
        ([*NEAR_ZERO[:11], 5.7, 6.6], None),  # too few rows to know the range
        ([*NEAR_ZERO, 5.7, *[6.6] * 16], 16),
        ([*NEAR_ZERO, 5.7, *[6.6] * 17], None),  # long ago
    ],
)
def test_a_reward_that_leaves_its_range_in_one_row_has_jumped(values, jump_step):
    assert of_values(values).jump_step == jump_step
    loaded = RewardTrend()
    loaded.resume(through_json(of_values(values[:17]).save()))
    followed([(value, None) for value in values[17:]], loaded, first=17)
    assert loaded.jump_step == jump_step
