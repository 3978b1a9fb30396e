"""An event loop that is held: whom the verdict names for it, and whom it does not."""

from __future__ import annotations

import pytest

from dfx_agent.snapshot.event_loop import UNNAMED
from tests.unit.judge.bottleneck.pipeline import GENERATION, TOOL, TURNS, Pipeline


def test_a_loop_that_never_answers_is_stalled_and_named():
    pipeline = Pipeline(wait={"collector": 0.4})
    pipeline.steps(8)
    pipeline.unanswered_seconds = 12.0
    verdict = pipeline.passes(12.0)
    assert verdict is not None
    assert (verdict.bound_by, verdict.causes[0].component) == ("stalled", "orchestrator event loop")
    assert "step_boundary > dumps (job.py) has held the event loop" in verdict.chain[-1]
    pipeline.holder = "(the host: no processor for the loop's thread)"
    verdict = pipeline.passes(1.0)
    assert verdict is not None
    assert verdict.bound_by != "stalled"


def test_an_event_loop_that_is_held_comes_before_the_tools_it_makes_look_slow():
    pipeline = Pipeline(told={TOOL: 0.02, TURNS: 2.0, GENERATION: 0.3})
    pipeline.steps(12)
    pipeline.late_seconds, pipeline.wait = 0.8, {"collector": 0.9}
    pipeline.told[TOOL] = 0.6
    verdict = pipeline.steps(6)
    assert [cause.bound_by for cause in verdict.causes] == ["event loop"]
    (cause,) = verdict.causes
    assert cause.amount == pytest.approx(0.8, rel=0.01)
    assert cause.component == "orchestrator event loop"
    assert "step_boundary > dumps (job.py) held the event loop" in cause.sentence


def test_a_loop_that_a_few_places_hold_is_told_with_how_many():
    pipeline = Pipeline(num_holders=4)
    pipeline.steps(12)
    pipeline.late_seconds, pipeline.wait = 0.8, {"collector": 0.9}
    (cause,) = pipeline.steps(6).causes
    assert cause.amount == pytest.approx(0.8, rel=0.01)
    assert "step_boundary > dumps (job.py) and 3 more held the event loop" in cause.sentence


def test_one_stall_of_a_loop_names_nobody():
    pipeline = Pipeline()
    pipeline.steps(12)
    pipeline.late_seconds = 5.0
    assert pipeline.steps(1).causes == ()
    pipeline.late_seconds = 0.0
    for _ in range(6):
        assert pipeline.steps(1).causes == ()


@pytest.mark.parametrize(
    "held",
    [
        {"holder": "(the host: no processor for the loop's thread)"},
        {"holder": UNNAMED},
        {"num_holders": 12},  # wherever its thread happened to be: a host without room
    ],
)
def test_what_held_a_loop_is_no_cause_where_no_code_can_be_named(held):
    pipeline = Pipeline(**held)
    pipeline.steps(12)
    pipeline.late_seconds, pipeline.wait = 0.8, {"collector": 0.9}
    assert all(cause.bound_by != "event loop" for cause in pipeline.steps(6).causes)
