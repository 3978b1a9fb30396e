"""Blow-ups, truncation and dead runs at the edge of what is told; streaks from begin to end."""

from __future__ import annotations

import math

import pytest
from kept_json import through_json

from dfx_agent.judge.divergence.bands import Band
from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.judge.divergence.collapse import (
    ALL_TRUNCATED,
    BLOW_UP_FACTOR,
    BLOW_UP_Z,
    MOST_TRUNCATED,
    REWARD_FLOOR_MARGIN,
    TRUNCATION_RISE,
    Streak,
    is_blown_up,
    is_cut_off,
)
from dfx_agent.judge.divergence.run_collapses import LowestReward
from dfx_agent.judge.divergence.symptoms import CALM_STEPS, SIGNALS

SPECS = {spec.name: spec for spec in SIGNALS}
FACTOR = math.log(BLOW_UP_FACTOR)


def streak(enough: int, states: str) -> Streak:
    """One step, from 1 on, for each letter: x holds, - does not."""
    found = Streak(enough)
    for step, state in enumerate(states, start=1):
        found.observe(step, holds=state == "x")
    return found


@pytest.mark.parametrize(
    ("states", "num_steps", "onset"),
    [
        ("-", 0, None),
        ("-xx", 2, 2),
        ("xx-", 0, None),  # not enough yet
        ("xx-x", 1, 4),
        ("xxx-", 3, 1),
        ("xxx" + "-" * (CALM_STEPS - 1), 3, 1),
        ("xxx" + "-" * (CALM_STEPS - 1) + "x", 4, 1),
        ("xxx-" + "x" + "-" * (CALM_STEPS - 1), 4, 1),  # counted anew
        ("xxx" + "-" * CALM_STEPS, 0, None),
        ("xxx" + "-" * CALM_STEPS + "x", 1, CALM_STEPS + 4),
        ("xxx" + "-" * CALM_STEPS + "xxx" + "-" * (CALM_STEPS - 1), 3, CALM_STEPS + 4),
    ],
)
def test_it_ends_after_sixteen_steps_without_once_it_lasted(states, num_steps, onset):
    found = streak(3, states)
    assert (found.num_steps, found.onset_step) == (num_steps, onset)
    loaded = Streak(3)
    loaded.resume(through_json(found.save()))
    assert loaded.save() == found.save()
    for item in (found, loaded):
        item.observe(99, holds=False)
    assert loaded.save() == found.save()


@pytest.mark.parametrize(("step", "is_kept"), [(1, False), (2, False), (3, True)])
def test_a_restart_at_its_begin_or_before_forgets_it(step, is_kept):
    found = streak(3, "-xxxx")
    found.rewind(step)
    assert (found.num_steps > 0) is is_kept
    streak(3, "-").rewind(step)


@pytest.mark.parametrize(
    ("score", "scale", "expected"),
    [
        (FACTOR, 0.01, True),
        (FACTOR - 1e-9, 0.01, False),
        (FACTOR, FACTOR / BLOW_UP_Z, True),
        (FACTOR, 1.001 * FACTOR / BLOW_UP_Z, False),
        (-100.0, 0.01, False),
    ],
)
def test_a_blow_up_is_twenty_times_and_ten_sigma(score, scale, expected):
    assert is_blown_up(SPECS["grad_norm"], Band(0.0, scale), score) is expected
    assert is_blown_up(SPECS["grad_norm"], Band(1.0, scale), score + 1.0 + 1e-12) is expected
    assert not is_blown_up(SPECS["reward"], Band(0.0, scale), score), "a raw value is no logarithm"


@pytest.mark.parametrize(
    ("usual", "truncation", "expected"),
    [
        (0.0, MOST_TRUNCATED, False),
        (0.0, MOST_TRUNCATED + 0.01, True),
        (0.5, 0.5 + TRUNCATION_RISE, False),
        (0.5, 0.51 + TRUNCATION_RISE, True),
        (0.0, TRUNCATION_RISE + 0.01, False),
    ],
)
def test_cut_off_is_most_of_the_responses_where_few_were(usual, truncation, expected):
    assert is_cut_off(Band(usual, 0.05), truncation) is expected


@pytest.mark.parametrize("low", [-20.0, -0.5, 0.0, 0.5, 20.0])
def test_at_its_lowest_within_a_hundredth_of_its_size(low):
    margin = REWARD_FLOOR_MARGIN * max(1.0, abs(low))
    lowest = LowestReward()
    for reward, expected in (
        (low + 9, True), (low, True), (low + 0.9 * margin, True), (low + 1.1 * margin, False),
        (low - 1, True), (low, False),
    ):  # fmt: skip
        assert lowest.is_at(reward) is expected
    assert lowest.lowest == low - 1


@pytest.mark.parametrize(
    ("reward", "truncation", "num_steps"),
    [
        (0.0, ALL_TRUNCATED + 0.01, 5),
        (0.0, ALL_TRUNCATED, 0),
        (None, 1.0, 0),
        (0.0, None, 0),
        (float("nan"), 1.0, 0),
        (1e300, 1.0, 0),
    ],
)
def test_dead_is_the_lowest_reward_with_nearly_all_responses_cut(reward, truncation, num_steps):
    bank = SignalBank()
    for step in range(5):
        values = {"reward": reward, "truncation": truncation}
        state = bank.observe(step, {name: v for name, v in values.items() if v is not None})
    dead = [row for row in state.collapses if row.kind == "dead"]
    assert [row.num_steps for row in dead] == ([num_steps] if reward == 0 and truncation else [])
