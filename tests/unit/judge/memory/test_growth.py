"""Steady growth, told apart from what healthy jobs do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from dfx_agent.judge.memory.growth import (
    MIN_STEPS,
    URGENT_STEPS,
    steady_bytes_per_step,
    urgent_bytes_per_step,
)

MIB = 2**20
BASE = 400 * MIB


def grown(shape: Callable[[int], float], num_steps: int = 64, noise: float = 0.0, seed: int = 0):
    """MiB beyond the base after each step, as samples; ``noise`` in MiB."""
    rng = random.Random(seed)
    return [(n, BASE + (shape(n) + rng.gauss(0, noise)) * MIB) for n in range(1, num_steps + 1)]


@pytest.mark.parametrize("per_step", [0.6, 4, 20, 500])
@pytest.mark.parametrize("seed", range(5))
def test_a_leak_is_seen_with_its_bytes_per_step(per_step, seed):
    noise = min(per_step, 3)
    found = steady_bytes_per_step(grown(lambda n: per_step * n, noise=noise, seed=seed))
    assert found == pytest.approx(per_step * MIB, rel=0.1)


def test_a_leak_is_seen_after_48_steps():
    leak = grown(lambda n: 20 * n)
    assert steady_bytes_per_step(leak[: MIN_STEPS - 1]) is None
    assert steady_bytes_per_step(leak[:MIN_STEPS]) == pytest.approx(20 * MIB)


@pytest.mark.parametrize(
    "shape",
    [
        lambda n: 2000 * (1 - math.exp(-n / 10)),  # caches fill
        lambda n: 300 * math.log(n),
        lambda n: 500 * math.sqrt(n),
        lambda n: 50 * min(n, 32),
        lambda n: 800 * (n >= 20),  # workers start
        lambda n: 800 * (n >= 8) + 800 * (n >= 50),
        lambda n: 900 * (n % 20 < 4),  # a checkpoint now and then
        lambda n: 900 * (n >= 60),
        lambda n: 100 * (n % 7),
        lambda n: -20 * n,
        lambda n: 0.3 * n,  # too little to be told
        lambda n: 0,
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_what_healthy_jobs_do_is_no_leak(shape, seed):
    for num_steps in range(MIN_STEPS, 65, 4):
        assert steady_bytes_per_step(grown(shape, num_steps, 2.0, seed)) == 0.0, num_steps


def test_a_leak_is_seen_through_checkpoints():
    found = steady_bytes_per_step(grown(lambda n: 20 * n + 900 * (n % 20 < 4)))
    assert found == pytest.approx(20 * MIB, rel=0.1)


def test_steps_that_are_not_in_a_row_count_by_their_numbers():
    leak = [(10 * n, value) for n, value in grown(lambda n: 20 * n)]
    assert steady_bytes_per_step(leak) == pytest.approx(2 * MIB)


def test_noise_is_no_leak():
    found = [
        steady_bytes_per_step(grown(lambda n: 0, 64, noise=200.0, seed=seed))
        for seed in range(1000)
    ]
    assert not any(found)


@pytest.mark.parametrize(("swing", "expected"), [(300, 20 * MIB), (500, 0.0)])
def test_what_differs_beside_the_growth_is_measured_without_the_growth(swing, expected):
    """Three times as much as the median swing: 900 of 1260 MiB is a leak, 1500 is none."""
    sawtooth = grown(lambda n: 20 * n + (swing if (n - 1) % 16 >= 8 else -swing))
    assert steady_bytes_per_step(sawtooth) == pytest.approx(expected)


@pytest.mark.parametrize(("least", "is_leak"), [(63 * 20 * MIB, True), (64 * 20 * MIB, False)])
def test_the_least_growth_is_that_of_all_steps(least, is_leak):
    found = steady_bytes_per_step(grown(lambda n: 20 * n), least)
    assert found == (20 * MIB if is_leak else 0.0)


@pytest.mark.parametrize(("base", "is_leak"), [(60 * 2**30, True), (70 * 2**30, False)])
def test_a_hundredth_of_what_it_has_is_the_least(base, is_leak):
    samples = [(n, base + 10.5 * MIB * n) for n in range(1, 65)]  # 661.5 MiB in all
    assert (steady_bytes_per_step(samples) > 0) is is_leak


@pytest.mark.parametrize(("late", "is_leak"), [(0.81, True), (0.79, False)])
def test_each_quarter_must_rise_by_most_of_the_mean_rise(late, is_leak):
    """The rises between the middles of quarters are 1.1, 1.1 and ``late`` of about the mean."""
    rises = [0.0, (3 - late) / 2, 3 - late, 3.0]
    samples = [(n + 1, BASE + 320 * MIB * rises[n // 16]) for n in range(64)]
    assert (steady_bytes_per_step(samples) > 0) is is_leak


def test_what_grows_for_16_steps_to_where_it_has_not_been_is_urgent():
    leak = grown(lambda n: 20 * n)
    assert urgent_bytes_per_step(leak[: URGENT_STEPS - 1], ()) == 0.0
    assert urgent_bytes_per_step(leak[:URGENT_STEPS], ()) == pytest.approx(20 * MIB)
    late = grown(lambda n: 20 * max(0, n - 30))
    assert urgent_bytes_per_step(late[:47], ()) == pytest.approx(20 * MIB)


def test_what_comes_to_where_it_was_is_not_urgent():
    """Samples of a pool that is filled over 30 steps and emptied; seen before, or longer ago."""
    pool = grown(lambda n: 50 * (n % 30))
    assert urgent_bytes_per_step(pool[:58], ()) == 0.0
    again = pool[30:58]
    assert urgent_bytes_per_step(again, ()) == pytest.approx(50 * MIB)
    assert urgent_bytes_per_step(again, pool[:30:8]) == 0.0


def test_noise_is_not_urgent():
    found = [
        urgent_bytes_per_step(grown(lambda n: 0, 64, noise=200.0, seed=seed), ())
        for seed in range(1000)
    ]
    assert not any(found)
