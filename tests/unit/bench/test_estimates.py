"""The benches' statistics, against numpy and against cases whose answer is known."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.estimates import (
    bootstrap_interval,
    difference_of_medians,
    geometric_mean,
    median,
    quantile,
    share_interval,
)

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@settings(deadline=None)
@given(VALUES, st.floats(0, 1))
def test_quantile_is_numpys_linear_one(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), abs=1e-6)


def test_quantile_of_one_value_is_that_value() -> None:
    assert [quantile([7.0], q) for q in (0.0, 0.5, 1.0)] == [7.0, 7.0, 7.0]


def test_median_of_an_even_number_lies_in_the_middle() -> None:
    assert median([4.0, 1.0, 2.0, 10.0]) == 3.0


def test_ratios_that_cancel_have_geometric_mean_one() -> None:
    assert geometric_mean([2.0, 0.5, 4.0, 0.25]) == pytest.approx(1.0)
    assert geometric_mean([1.1, 1.1]) == pytest.approx(1.1)


def test_bootstrap_interval_is_as_wide_as_theory_says() -> None:
    draw = random.Random(1)
    sample = [draw.gauss(10.0, 2.0) for _ in range(400)]
    low, high = bootstrap_interval(lambda values: math.fsum(values) / len(values), sample)
    assert low < 10.0 < high
    assert high - low == pytest.approx(2 * 1.96 * 2.0 / math.sqrt(400), rel=0.15)


def test_bootstrap_interval_holds_the_truth_in_about_95_of_100_samples() -> None:
    draw = random.Random(2)
    held = 0
    for seed in range(200):
        sample = [draw.lognormvariate(0.0, 0.1) for _ in range(40)]
        low, high = bootstrap_interval(geometric_mean, sample, num_resamples=300, seed=seed)
        held += low <= 1.0 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_bootstrap_draws_two_samples_independently() -> None:
    draw = random.Random(3)
    plain = [draw.gauss(18.0, 1.0) for _ in range(100)]
    slower = [draw.gauss(19.0, 1.0) for _ in range(100)]
    low, high = bootstrap_interval(difference_of_medians, slower, plain)
    assert 0.0 < low < difference_of_medians(slower, plain) < high
    identical = bootstrap_interval(difference_of_medians, plain, plain)
    assert identical[0] < 0.0 < identical[1]


def test_the_same_seed_gives_the_same_interval() -> None:
    sample = [1.0, 2.0, 4.0, 8.0]
    assert bootstrap_interval(median, sample, seed=5) == bootstrap_interval(median, sample, seed=5)


@pytest.mark.parametrize(
    ("num_found", "num_tried", "low", "high"),
    [(0, 10, 0.0, 0.2775), (81, 263, 0.2553, 0.3662), (42, 42, 0.9162, 1.0)],
)
def test_interval_of_a_share(num_found, num_tried, low, high):
    """The middle case is from Newcombe, Stat. Med. 17 (1998), table I."""
    assert share_interval(num_found, num_tried) == pytest.approx((low, high), abs=1e-4)
