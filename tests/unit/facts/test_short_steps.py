"""Short steps as one: nothing of them is lost, and steps that are long enough stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.facts.short_steps import ShortSteps
from dfx_agent.facts.steps import LEAST_SECONDS, RankStep, SchedTimes, Step

STAGE = ("stage", "train")


def step(number: int, walls: dict[str, float], **known: float | SchedTimes | None) -> Step:
    of = {
        rank: RankStep(wall, wall / 4, {STAGE: wall * 3 / 4}, None, **known)  # type: ignore[arg-type]
        for rank, wall in walls.items()
    }
    return Step(number, number * 10.0, number, of)


def taken(short: ShortSteps, steps: list[Step]) -> list[Step]:
    return [whole for each in steps if (whole := short.take(each)) is not None]


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
    num_taken = sum(each.num_steps for each in whole)
    for part in (
        lambda of: of.wall_seconds,
        lambda of: of.waited_seconds,
        lambda of: of.parts[STAGE],
    ):
        total = sum(part(each.ranks["0"]) * each.num_steps for each in whole)
        assert total == pytest.approx(sum(part(each.ranks["0"]) for each in steps[:num_taken]))
    assert sum(walls[num_taken:]) < LEAST_SECONDS
    assert all(
        each.ranks["0"].wall_seconds * each.num_steps >= LEAST_SECONDS * 0.999 for each in whole
    )


def test_what_is_not_known_of_one_is_not_known_of_the_mean():
    had = SchedTimes(2_000_000, 1_000_000, 2.0)
    known = step(1, {"0": 0.2}, num_forward_tokens=6.0, busy_seconds=0.1, processor=had)
    more = step(2, {"0": 0.2}, num_forward_tokens=8.0, busy_seconds=0.2, processor=SchedTimes(0, 0))
    (whole,) = taken(ShortSteps(), [known, more])
    of = whole.ranks["0"]
    assert (of.num_tokens, of.num_forward_tokens) == (None, 7.0)
    assert of.busy_seconds == pytest.approx(0.15)
    assert of.processor == SchedTimes(1_000_000, 500_000, 2.0)
    (whole,) = taken(ShortSteps(), [known, step(2, {"0": 0.2})])
    assert (whole.ranks["0"].busy_seconds, whole.ranks["0"].processor) == (None, None)


def test_other_ranks_begin_anew():
    short = ShortSteps()
    assert short.take(step(1, {"0": 0.2, "1": 0.2})) is None
    assert short.take(step(2, {"0": 0.2})) is None
    whole = short.take(step(3, {"0": 0.2}))
    assert whole is not None
    assert (whole.num_steps, whole.step) == (2, 3)
