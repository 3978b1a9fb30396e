"""The smallest step between values: eighths, rounding, and too many values to be a count."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.judge.divergence.value_steps import MAX_VALUES, ValueSteps


def smallest(values) -> float:
    steps = ValueSteps()
    for value in values:
        steps.add(value)
    return steps.smallest


@given(st.lists(st.integers(-15, 15), max_size=60))
def test_it_is_the_smallest_difference_of_two_values(eighths):
    known = sorted(set(eighths))
    expected = min((b - a for a, b in pairwise(known)), default=0)
    assert smallest(n / 8 for n in eighths) == expected / 8


@pytest.mark.parametrize("near", [1.0, -1.0])
@pytest.mark.parametrize("size", [0.5, 1.0, 1000.0])
def test_rounding_is_no_step(size, near):
    unit = 1e-6 * max(1.0, size)
    assert smallest([size, size + 0.9 * near * unit]) == 0.0
    assert smallest([size, size + 1.1 * near * unit]) == pytest.approx(1.1 * unit, rel=1e-3)


def test_many_values_are_no_count():
    assert smallest(range(MAX_VALUES - 1)) == 1.0
    assert smallest(range(MAX_VALUES)) == 0.0
    assert smallest([*range(MAX_VALUES), 0.5]) == 0.0


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 40))
def test_loaded_state_continues_as_before(values, more):
    steps, loaded = ValueSteps(), ValueSteps()
    loaded.add(7.7)
    for value in values:
        steps.add(value / 4)
    loaded.resume(steps.save())
    assert loaded.smallest == steps.smallest
    for item in (steps, loaded):
        item.add(more / 8)
    assert (loaded.smallest, loaded.save()) == (steps.smallest, steps.save())
