"""What a baseline learns, what it forgets, and that frozen it stays what it was."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_json import through_json

from dfx_agent.judge.divergence.baseline import (
    GAP_STEPS,
    MIN_STEPS,
    WARM_STEPS,
    WINDOW_STEPS,
    Baseline,
    Drift,
)
from dfx_agent.judge.divergence.symptoms import SIGNALS

SPECS = {spec.name: spec for spec in SIGNALS}
SCORES = st.lists(st.floats(-10, 10), min_size=MIN_STEPS + GAP_STEPS, max_size=100)
SIGNAL = st.sampled_from(["grad_norm", "reward"])  # scored by its logarithm, and raw


def learned(scores, signal="grad_norm") -> Baseline:
    baseline = Baseline(SPECS[signal])
    for step, score in enumerate(scores):
        baseline.admit(step, score)
    return baseline


@given(SIGNAL, SCORES, st.lists(st.floats(-1e3, 1e3), max_size=5))
def test_a_frozen_baseline_is_that_before_the_last_steps(signal, scores, later):
    """The newest two, not in use yet, belong to what is happening now."""
    baseline = learned(scores, signal)
    before = baseline.band()
    baseline.freeze()
    assert baseline.band() == before
    baseline.freeze()
    for step, score in enumerate(later, start=len(scores)):
        baseline.admit(step, score, is_learned=signal != "reward")
        baseline.freeze()
    assert baseline.band() == before or signal == "reward"  # its scale knows the steps of values
    assert len(baseline.save().rows) == min(len(scores), WINDOW_STEPS + GAP_STEPS) - GAP_STEPS


@pytest.mark.parametrize("num_rows", range(GAP_STEPS + 1))
def test_frozen_with_few_rows_it_has_none(num_rows):
    baseline = learned([1.0] * num_rows)
    baseline.freeze()
    assert baseline.save().rows == ()


def test_thawed_it_learns_on_without_what_happened():
    baseline = learned([1.0] * 20)
    baseline.freeze()
    for step in range(20, 30):
        baseline.admit(step, 100.0)
    baseline.thaw()
    for step in range(30, 40):
        baseline.admit(step, 3.0)
    assert [score for _, score in baseline.save().rows] == [1.0] * 18 + [3.0] * 10


@given(SCORES)
def test_all_but_the_last_two_are_in_use(scores):
    assert learned(scores).band() == learned([*scores[:-GAP_STEPS], 1e6, -1e6]).band()


def test_in_use_are_64():
    baseline = learned([-100.0] * 40 + [1.0] * 34)
    assert baseline.band().median == 1.0 - 101 / 2, "31 or 33 of them would be the lesser half"
    assert [step for step, _ in learned(range(100)).save().rows] == list(range(34, 100))


def test_there_is_a_band_from_the_fifth_step_on():
    assert learned([1.0] * 4).band() is None
    assert learned([1.0] * 5).band().scale == 0.5
    baseline = learned([1.0] * 20)
    baseline.admit(20, 9.0, is_learned=False)
    assert len(baseline.save().rows) == 20, "a signal that is not learned from now"


@pytest.mark.parametrize("odd_one", [-1.0, 1.0])
def test_it_is_ready_with_12_rows(odd_one):
    assert not Baseline(SPECS["grad_norm"]).is_ready
    for num, is_ready in ((WARM_STEPS - 1, False), (WARM_STEPS, True)):
        baseline = learned([odd_one] + [0.0] * (num - 1 + GAP_STEPS))
        baseline.band()
        assert baseline.is_ready is is_ready
    baseline.clear()
    assert not baseline.is_ready
    assert baseline.band() is None


def test_a_trend_is_seen_from_12_rows_on():
    assert learned(range(11 + GAP_STEPS)).band().trend is None
    assert learned(range(12 + GAP_STEPS)).band().trend.sign == 1


def test_the_smallest_step_between_values_is_that_of_a_raw_signal():
    assert learned([0.5, 0.75, 0.5], "reward").smallest_step == 0.25
    assert learned([0.5, 0.75, 0.5]).smallest_step == 0.0


@given(SCORES, st.integers(0, 100))
def test_rewound_it_is_as_if_the_later_steps_had_not_been(scores, step):
    baseline = learned(scores)
    baseline.rewind(step)
    rows = list(enumerate(scores))[-(WINDOW_STEPS + GAP_STEPS) :]
    assert baseline.save().rows == tuple(row for row in rows if row[0] < step)


@given(SIGNAL, SCORES, st.booleans())
def test_loaded_state_continues_as_before(signal, scores, is_frozen):
    baseline, loaded = learned(scores, signal), Baseline(SPECS[signal])
    if is_frozen:
        baseline.freeze()
    loaded.resume(through_json(baseline.save()))
    for item in (baseline, loaded):
        item.admit(200, 5.0)
    assert loaded.save() == baseline.save()
    assert loaded.band() == baseline.band()


@pytest.mark.parametrize(
    ("scores", "scale"),
    [
        ([0.0] * 20, 0.05),
        ([0.9] * 20, 0.09),  # a tenth of the median
        ([0.1, 0.1, 0.1, 0.9] * 5, 0.8),  # the smallest step between values
        ([1.0, 1.0, 1.0, 9.0] * 5, 8.0),  # no share
        ([0.5, 0.5625] * 10, math.sqrt(0.53125 * 0.46875 / 16)),  # a share of 16 samples
        ([0.0] * 8, 0.15 + 3 / 9 * (0.05 - 0.15)),  # 6 rows in use: cold
        ([9.0] * 8, 0.9),
    ],
)
def test_the_smallest_scale_of_a_raw_signal(scores, scale):
    assert learned(scores, "reward").band().scale == pytest.approx(scale)


# ------------------------------------------------------------------------------------------- drift


def drifted(values) -> Drift:
    drift = Drift()
    for step, value in enumerate(values):
        drift.add(step, value)
    return drift


@pytest.mark.parametrize(("num", "start"), [(28, None), (29, 12.0)])
def test_the_start_is_the_median_of_its_values_once_it_is_past(num, start):
    """Of the fifth to the twenty-first, when eight newer ones are there."""
    drift = drifted(range(num))
    assert drift.start_median == start
    assert drift.recent_median == num - 4.5
    assert drifted(range(7)).recent_median is None
    assert drifted(range(8)).recent_median == 3.5


def test_a_rewind_into_the_start_takes_what_is_reported_again():
    drift = drifted(range(40))
    assert drift.start_median == 12.0
    drift.rewind(10)
    assert (drift.start_median, drift.recent_median) == (None, None)
    for step in range(10, 29):
        drift.add(step, step + 100.0)
    assert drift.start_median == 110 + 2  # six of before, then eleven of 110 to 120
    drift.rewind(25)
    assert drift.start_median == 112.0, "a rewind behind the start leaves it"


def test_a_cleared_baseline_starts_from_nothing():
    drift = drifted(range(40))
    drift.clear()
    assert drift.save() == Drift().save()
    for step in range(29):
        drift.add(step, step + 50.0)
    assert drift.start_median == 62.0


@given(st.lists(st.floats(-10, 10), max_size=60), st.lists(st.floats(-10, 10), max_size=40))
def test_a_drift_continues_as_before(values, later):
    drift, loaded = drifted(values), Drift()
    loaded.resume(through_json(drift.save()))
    for step, value in enumerate(later, start=len(values)):
        drift.add(step, value)
        loaded.add(step, value)
    assert (loaded.start_median, loaded.recent_median) == (drift.start_median, drift.recent_median)
