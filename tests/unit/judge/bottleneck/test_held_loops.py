"""An event loop that is held: whom the verdict names for it, and whom it does not."""

from __future__ import annotations

import pytest

from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.event_loop import UNNAMED
from tests.unit.judge.bottleneck.pipeline import GENERATION, TOOL, TURNS, Pipeline


def test_a_loop_that_never_answers_is_stalled_and_named():
    pipeline = Pipeline(wait={"collector": 0.4})
    pipeline.steps(8)
    pipeline.unanswered_seconds = 12.0
    verdict = pipeline.passes(12.0)
    assert verdict is not None
    assert (verdict.bound_by, verdict.causes[0].component) == ("stalled", "orchestrator event loop")
    assert verdict.chain[-1] == (
        "The event loop of orchestrator p5 has been blocked for 12 s by "
        "step_boundary > dumps (job.py)."
    )
    pipeline.holder = "(the host: no processor for the loop's thread)"
    verdict = pipeline.passes(1.0)
    assert verdict is not None
    assert verdict.bound_by != "stalled"


def test_a_held_loop_of_a_role_that_hangs_is_the_same_standstill():
    """An asynchronous Ray actor that is stuck in its method holds its loop, and so do its peers."""
    pipeline = Pipeline(wait={"collector": 0.4})
    pipeline.steps(8)
    pipeline.unanswered_seconds = 12.0
    hang = Verdict("hang", "found", "orchestrator", "Rank 1 is stuck in f (job.py:7).", ("1",))
    pipeline.verdicts = (hang,)
    verdict = pipeline.passes(12.0)
    assert verdict is not None
    assert [cause.kind for cause in verdict.causes] == ["hang"]
    assert verdict.chain[-1] == hang.summary


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
    assert cause.sentence.endswith("of each step by step_boundary > dumps (job.py).")


def test_a_loop_that_a_few_places_hold_is_told_with_how_many():
    pipeline = Pipeline(num_holders=4)
    pipeline.steps(12)
    pipeline.late_seconds, pipeline.wait = 0.8, {"collector": 0.9}
    (cause,) = pipeline.steps(6).causes
    assert cause.amount == pytest.approx(0.8, rel=0.01)
    assert cause.sentence.endswith("by step_boundary > dumps (job.py) and 3 more.")


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


def test_on_a_busy_host_the_coroutine_that_holds_the_loop_for_long_is_named():
    """Most of the lateness is waiting for a processor: the code holds the loop meanwhile."""
    pipeline = Pipeline(host_share=0.7, num_holds=5)
    pipeline.steps(12)
    pipeline.late_seconds, pipeline.wait = 1.5, {"collector": 1.5}
    (cause,) = pipeline.steps(6).causes
    assert (cause.kind, cause.amount) == ("held loop", pytest.approx(1.5))


@pytest.mark.parametrize(
    "held",
    [
        {"num_holds": 60},  # one coroutine, each time for a moment
        {"num_holders": 6, "holder": "task > a (job.py)"},  # many places
    ],
)
def test_on_a_busy_host_short_holds_name_nobody(held):
    pipeline = Pipeline(host_share=0.7, **held)
    pipeline.steps(12)
    pipeline.late_seconds, pipeline.wait = 1.5, {"collector": 1.5}
    assert all(cause.kind != "held loop" for cause in pipeline.steps(6).causes)
