"""Short steps are told together, cut at the same numbers on every node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.facts.steps import GroupTime, RankStep, Step
from dfx_agent.hub.sending import StepChunks


def step(number: int, wall: float, label: str = "0") -> Step:
    entry = RankStep(
        wall, 0.1 * wall, {("idle", ""): 0.0, ("transfer", ""): 0.0}, None,
        groups={"0": GroupTime(2, 2 * number, 0.1 * wall)},
    )  # fmt: skip
    return Step(number, float(number), 0, {label: entry})


def test_long_steps_are_sent_whole():
    steps = [step(number, 0.3) for number in range(5)]
    assert list(StepChunks().join(steps)) == steps


@given(
    wall=st.floats(0.002, 0.2),
    cuts=st.lists(st.integers(0, 400), max_size=5),
)
def test_nodes_that_read_at_other_moments_cut_at_the_same_numbers(wall, cuts):
    steps = [step(number, wall) for number in range(400)]
    one = list(StepChunks().join(steps))
    other, chunks = [], StepChunks()
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 400], strict=True):
        other += chunks.join(steps[begin:end])
    assert other == one
    assert all(chunk.num_steps * wall >= 0.25 for chunk in one)
    assert sum(chunk.num_steps for chunk in one) <= 400


def test_a_chunk_is_the_mean_step_with_all_its_collectives():
    (chunk,) = StepChunks().join([step(number, 0.1) for number in (4, 5, 6, 7, 8)])
    assert (chunk.step, chunk.num_steps) == (7, 4)
    entry = chunk.ranks["0"]
    assert entry.wall_seconds == pytest.approx(0.1)
    assert entry.groups["0"] == GroupTime(8, 14, pytest.approx(0.01))


def test_another_set_of_ranks_ends_a_chunk():
    reported = StepChunks().join([step(0, 0.1), step(1, 0.1, "1"), step(8, 0.1, "1")])
    assert [(chunk.step, chunk.num_steps) for chunk in reported] == [(0, 1), (1, 1)]
