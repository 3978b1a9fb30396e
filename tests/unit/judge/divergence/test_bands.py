"""Bands and trends against figures worked out by hand, and z against the ends of its band."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.judge.divergence.bands import (
    ESTABLISHED_STEPS,
    MAD_TO_SIGMA,
    MEAN_DEVIATION_TO_SIGMA,
    Band,
    Trend,
    mean_deviation,
    median_distance,
    median_of_sorted,
    trend_of,
)

WIDE = 100.0  # a spread that every trend explains
LEVEL = Trend(1, level=10.0, next=12.0, scale=0.5, is_established=True)


def test_a_median_of_an_even_number_is_the_middle_of_two():
    assert median_of_sorted([1.0, 5.0, 9.0]) == 5.0
    assert median_of_sorted([1.0, 5.0, 6.0, 9.0]) == 5.5


@given(st.lists(st.integers(-5, 5) | st.floats(-1e3, 1e3), min_size=1, max_size=70))
def test_the_deviation_is_that_of_sorted_distances(scores):
    ordered = sorted(map(float, scores))
    middle = median_of_sorted(ordered)
    apart = sorted(abs(score - middle) for score in ordered)
    median = MAD_TO_SIGMA * median_of_sorted(apart)
    mean = MEAN_DEVIATION_TO_SIGMA * sum(apart) / len(apart)
    begin, distance = median_distance(ordered, middle)
    assert MAD_TO_SIGMA * distance == pytest.approx(median, abs=1e-9)
    assert mean_deviation(ordered) == pytest.approx(mean, abs=1e-9)
    for near in range(len(ordered)):
        assert median_distance(ordered, middle, near) == (begin, distance)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("num", "level", "ahead"), [(12, 7.5, 7.5), (23, 18.5, 18.5), (24, 19.5, 26)]
)
def test_a_straight_line(sign, num, level, ahead):
    """The median of its newest 8; from 24 rows on where it is two rows later."""
    trend = trend_of([sign * float(n) for n in range(num)], WIDE, floor=0.2)
    assert trend == Trend(sign, sign * level, sign * ahead, 0.2, num >= ESTABLISHED_STEPS)


def test_the_noise_around_a_line_is_its_scale():
    noise = [0.0, 0.4, -0.4]
    scores = [n + noise[n % 3] for n in range(27)]
    trend = trend_of(scores, WIDE, floor=0.01)
    assert trend.scale == pytest.approx(MAD_TO_SIGMA * 0.4)
    assert trend.next == pytest.approx(29.0)


def test_it_is_believed_where_the_spread_is_twice_its_noise():
    line = [float(n) for n in range(24)]
    assert trend_of(line, 2.0, floor=1.0) is not None
    assert trend_of(line, 1.99, floor=1.0) is None


@pytest.mark.parametrize(("middle", "is_trend"), [(5.0, True), (4.9, False), (5.1, False)])
def test_both_halves_must_rise_by_half_its_noise(middle, is_trend):
    scores = [0.0] * 8 + [middle] * 8 + [10.0] * 8
    assert (trend_of(scores, WIDE, floor=10.0) is not None) is is_trend


def test_what_falls_back_is_no_trend():
    assert trend_of([*range(12), *reversed(range(12))], WIDE, floor=0.1) is None
    assert trend_of([1.0] * 24, WIDE, floor=0.1) is None


def test_a_flattened_line_never_leads_back():
    """Its resistant line may end below where it stands already."""
    scores = [float(min(n, 15)) for n in range(16)] + [30.0] * 10
    trend = trend_of(scores, WIDE, floor=0.1)
    assert trend is None or trend.next >= trend.level


@pytest.mark.parametrize(
    ("score", "z"),
    [
        (10.0, 0.0),  # where it stands
        (9.0, -2.0),  # against the trend, by its own noise: plain is 1 above
        (2.0, -16.0),
        (11.0, 0.0),  # along, short of where it leads
        (13.0, 2.0),  # along, beyond: plain 5
        (20.0, 12.0),  # plain: 16 noises beyond where it leads
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_z_with_a_trend(sign, score, z):
    trend = LEVEL._replace(sign=sign, level=sign * LEVEL.level, next=sign * LEVEL.next)
    assert Band(sign * 8.0, 1.0, trend).z(sign * score) == pytest.approx(sign * z)


def test_z_far_below_the_median_is_the_plain_one_where_that_is_more():
    band = Band(8.0, 0.1, LEVEL)
    assert band.z(2.0) == pytest.approx(-60.0)


def test_z_along_a_young_trend_is_the_plain_one():
    band = Band(8.0, 1.0, LEVEL._replace(is_established=False))
    assert band.z(11.0) == 3.0
    assert band.z(9.0) == -2.0
    assert Band(8.0, 2.0).z(9.0) == 0.5


@pytest.mark.parametrize(("is_established", "end"), [(True, 6.0), (False, 2.0)])
def test_the_ends_with_a_trend(is_established, end):
    """Against it: two noises before where it stands; along it: two beyond where it leads."""
    trend = Trend(1, level=2.0, next=5.0, scale=0.5, is_established=is_established)
    assert Band(0.0, 1.0, trend).ends(2) == (1.0, end)
    falling = trend._replace(sign=-1, level=-2.0, next=-5.0)
    assert Band(0.0, 1.0, falling).ends(2) == (-end, -1.0)
    assert Band(9.0, 1.0, trend).ends(2) == (7.0, 11.0)
    assert Band(-9.0, 1.0, falling).ends(2) == (-11.0, -7.0)


@given(
    st.integers(0, 1000), st.floats(-1, 1), st.integers(3, 66), st.sampled_from([2.0, 3.0]),
    st.booleans(),
)  # fmt: skip
def test_the_ends_of_a_band_are_where_z_is_that(seed, slope, num, z, has_trend):
    rng = random.Random(seed)
    scores = [slope * n + rng.gauss(0, 0.3) for n in range(num)]
    ordered = sorted(scores)
    middle = median_of_sorted(ordered)
    spread = max(0.05, MAD_TO_SIGMA * median_of_sorted(sorted(abs(s - middle) for s in scores)))
    band = Band(middle, spread, trend_of(scores, spread, 0.05) if has_trend and num >= 12 else None)
    low, high = band.ends(z)
    tiny = 1e-6 * (1 + abs(low) + abs(high))
    assert band.z(low - tiny) < -z < band.z(low + tiny)
    assert band.z(high - tiny) < z < band.z(high + tiny)
