"""Short steps as one: nothing of them is lost, and steps that are long enough stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.facts.short_steps import ShortSteps
from dfx_agent.facts.steps import LEAST_SECONDS, RankStep, SchedTimes, Step

STAGE = ("stage", "train")


def step(number: int, walls: dict[str, float], **known: float | SchedTimes | None) -> Step:
    entry = {
        rank: RankStep(wall, wall / 4, {STAGE: wall * 3 / 4}, None, **known)  # type: ignore[arg-type]
        for rank, wall in walls.items()
    }
    return Step(number, number * 10.0, number, entry)


def taken(short: ShortSteps, steps: list[Step]) -> list[Step]:
    return [whole for item in steps if (whole := short.take(item)) is not None]


def test_a_step_that_is_long_enough_stays_as_it_is():
    alone = step(3, {"0": LEAST_SECONDS, "1": 1.0})
    assert ShortSteps().take(alone) is alone


def test_short_ones_are_given_once_they_last_long_enough_for_every_rank():
    steps = [step(number, {"0": 0.1, "1": 0.09}) for number in range(6)]
    first, second = taken(ShortSteps(), steps)
    assert (first.step, first.begin_seconds, first.num_steps, first.num_lost) == (2, 0.0, 3, 2)
    assert (second.step, second.begin_seconds, second.num_steps) == (5, 30.0, 3)
    assert first.ranks["1"].wall_seconds == pytest.approx(0.09)


@given(st.lists(st.floats(0.001, 0.6), min_size=1, max_size=60))
def test_no_second_is_lost_but_those_still_gathered(walls: list[float]):
    steps = [step(number, {"0": wall, "1": wall}) for number, wall in enumerate(walls)]
    whole = taken(ShortSteps(), steps)
    num_taken = sum(item.num_steps for item in whole)
    for part in (
        lambda entry: entry.wall_seconds,
        lambda entry: entry.waited_seconds,
        lambda entry: entry.parts[STAGE],
    ):
        total = sum(part(item.ranks["0"]) * item.num_steps for item in whole)
        assert total == pytest.approx(sum(part(item.ranks["0"]) for item in steps[:num_taken]))
    assert sum(walls[num_taken:]) < LEAST_SECONDS
    assert all(
        item.ranks["0"].wall_seconds * item.num_steps >= LEAST_SECONDS * 0.999 for item in whole
    )


def test_what_is_not_known_of_one_is_not_known_of_the_mean():
    had = SchedTimes(2_000_000, 1_000_000, 2.0)
    known = step(1, {"0": 0.2}, num_forward_tokens=6.0, busy_seconds=0.1, processor=had)
    more = step(2, {"0": 0.2}, num_forward_tokens=8.0, busy_seconds=0.2, processor=SchedTimes(0, 0))
    (whole,) = taken(ShortSteps(), [known, more])
    entry = whole.ranks["0"]
    assert (entry.num_tokens, entry.num_forward_tokens) == (None, 7.0)
    assert entry.busy_seconds == pytest.approx(0.15)
    assert entry.processor == SchedTimes(1_000_000, 500_000, 2.0)
    (whole,) = taken(ShortSteps(), [known, step(2, {"0": 0.2})])
    assert (whole.ranks["0"].busy_seconds, whole.ranks["0"].processor) == (None, None)


def test_other_ranks_start_from_nothing():
    short = ShortSteps()
    assert short.take(step(1, {"0": 0.2, "1": 0.2})) is None
    assert short.take(step(2, {"0": 0.2})) is None
    whole = short.take(step(3, {"0": 0.2}))
    assert whole is not None
    assert (whole.num_steps, whole.step) == (2, 3)
