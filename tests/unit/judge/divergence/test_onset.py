"""Since when: the common change point of everything that moved, and how sure it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.judge.divergence.onset import find_onset

ROWS = st.lists(st.floats(-1e6, 1e6), max_size=60)


def noise(rng: random.Random, num: int, mean: float = 0.0) -> list[float]:
    return [rng.gauss(mean, 1.0) for _ in range(num)]


def history(zs: list[float], every: int = 1) -> list[tuple[int, float]]:
    """Steps from 0 on."""
    return [(every * row, z) for row, z in enumerate(zs)]


@pytest.mark.parametrize("seed", range(20))
def test_two_signals_that_move_together_tell_the_step_within_the_range(seed):
    rng = random.Random(seed)
    moved = [history(noise(rng, 40) + noise(rng, 6, mean)) for mean in (3.0, 5.0)]
    found = find_onset(moved)
    assert found.low_step <= found.step <= found.high_step
    assert abs(found.step - 40) <= 2
    assert found.low_step - 1 <= 40 <= found.high_step + 1


def test_a_small_drift_before_it_is_not_the_beginning():
    """KL of the demo: a little higher since step 37, far off since step 70."""
    drift = [0.0] * 37 + [1.1] * 33 + [9.0, 9.5]
    assert find_onset([history(drift)]).step == 70


def test_what_had_ended_before_calm_rows_is_another_one():
    zs = [0.0] * 20 + [6.0] * 6 + [0.5] * 9 + [1.0] * 6 + [7.0] * 4
    assert find_onset([history(zs)]).low_step >= 35
    still = [0.0] * 20 + [6.0] * 6 + [0.5] * 3 + [7.0] * 10
    assert find_onset([history(still)]).step == 20


def test_a_slow_drift_has_a_wide_range_and_a_jump_a_narrow_one():
    slow = find_onset([history([0.0] * 30 + [0.3 * row for row in range(12)])])
    sudden = find_onset([history([0.0] * 30 + [8.0] * 4)])
    assert sudden.low_step == sudden.high_step == 30
    assert slow.high_step - slow.low_step >= 2


def test_rows_that_a_signal_does_not_report_say_nothing():
    each = history([0.0] * 40 + [5.0] * 8)
    sparse = history([0.0] * 10 + [5.0] * 2, every=4)
    assert find_onset([each, sparse]).step == 40
    assert find_onset([sparse]).step == 40


def test_nothing_that_is_off_has_no_onset():
    assert find_onset([]) is None
    assert find_onset([[]]) is None
    assert find_onset([history([-1.0] * 30)]) is None


def test_not_before_a_given_step():
    zs = history([0.0] * 20 + [5.0] * 10)
    assert find_onset([zs], from_step=24).step == 24


@given(st.lists(ROWS, max_size=4))
def test_the_range_holds_the_step_whatever_the_rows(rows):
    found = find_onset([history(zs) for zs in rows])
    if found is not None:
        assert found.low_step <= found.step <= found.high_step
