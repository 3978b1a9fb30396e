"""What a pipeline waits for, concluded from facts made by hand: no process, no file, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.judge.bottleneck.judge import BottleneckJudge
from dfx_agent.judge.bottleneck.pipeline_facts import LabeledMetric, PipelineFacts, ProcessTime
from dfx_agent.snapshot import OpenSpan, StepCell, StepRow, TimeSplit, Verdict
from tests.unit.judge.bottleneck.pipeline import GENERATION, TOOL, TURNS, Pipeline

STALE = LabeledMetric("dfx_step_stale_samples", (("action", "evicted_groups"),))
ACTIVE = LabeledMetric("dfx_queue_depth", (("queue", "active"),))


def receiver(name: str, part: str = "transfer") -> LabeledMetric:
    return LabeledMetric("dfx_weight_update_seconds", (("part", part), ("receiver", name)))


def test_without_steps_there_is_nothing_to_say():
    assert BottleneckJudge().verdict(PipelineFacts(now_seconds=1.0)) is None


def test_few_steps_are_too_few():
    verdict = Pipeline().steps(2)
    assert (verdict.state, verdict.bound_by) == ("insufficient evidence", None)
    assert (
        verdict.summary
        == "Too early to say where the time of a step goes: 2 of 3 steps have ended."
    )


def test_nobody_waits_for_long_is_balanced():
    verdict = Pipeline().steps(12)
    assert (verdict.state, verdict.causes) == ("clear", ())
    assert verdict.summary.startswith("Balanced: trainer trains during 92 % of a step")


def test_trainers_that_wait_for_samples_are_rollout_bound_with_the_share():
    verdict = Pipeline(wait={"collector": 1.2}).steps(12)
    assert (verdict.state, verdict.bound_by, verdict.causes) == ("found", "rollout", ())
    assert verdict.cost_seconds == pytest.approx(1.2)
    assert verdict.cost_ratio == pytest.approx(0.5)
    assert verdict.balance == "2 times the rollout capacity per trainer would end the wait."


def test_rollout_that_waits_for_trainers_is_train_bound():
    verdict = Pipeline(rollout_wait=0.5).steps(12)
    assert (verdict.state, verdict.bound_by) == ("found", "train")
    assert verdict.balance == "2 times the training capacity would end the wait."


def test_a_slow_replica_is_named_with_what_it_costs():
    pipeline = Pipeline(wait={"collector": 1.2})
    pipeline.steps(10)
    pipeline.replicas[1].token_seconds *= 3
    verdict = pipeline.steps(9)
    (cause,) = verdict.causes
    assert (cause.bound_by, cause.component) == ("rollout", "rollout replica 1")
    # busy for 0.8 of 2.4 s, a third of it would do
    assert cause.amount == pytest.approx(0.8 * 2.4 * 2 / 3, rel=0.01)
    assert verdict.chain[0].startswith("Ranks of trainer wait for samples for 1.2 s")
    assert (
        "replica 1 takes 0.012 s per token, the others 0.004 s (3 times as long)"
        in verdict.chain[1]
    )


def test_one_slow_step_of_a_replica_names_nobody():
    pipeline = Pipeline(wait={"collector": 1.2})
    pipeline.steps(10)
    pipeline.replicas[1].token_seconds *= 8
    assert pipeline.steps(1).causes == ()
    pipeline.replicas[1].token_seconds /= 8
    for _ in range(6):
        assert pipeline.steps(1).causes == ()


def test_an_engine_that_moves_nothing_is_stalled_though_no_step_closes():
    pipeline = Pipeline(wait={"collector": 1.2})
    pipeline.steps(5)
    pipeline.inflight = {"trainer": (OpenSpan("wait", "collector", 0.0, 21.0, 6),)}
    for _ in range(4):
        pipeline.replicas[0].num_waited_tokens += 10  # the other one goes on
        verdict = pipeline.passes(5.0)
    assert verdict is not None
    assert (verdict.state, verdict.bound_by) == ("found", "stalled")
    (cause,) = verdict.causes
    assert (cause.component, cause.amount, cause.unit) == ("rollout replica 1", 2.0, "requests")
    assert verdict.chain[0] == "Rank 1 has been in collector for 21 s."
    assert "replica 1 has 2 requests and has made no progress for 20 s" in verdict.chain[1]


def test_who_brings_weights_to_an_engine_that_stands_is_no_cause_beside_it():
    pipeline = Pipeline()
    pipeline.steps(6)
    hang = Verdict("hang", "found", "trainer", "rank 0 stuck in weight_sync_pause", ("0",), step=6)
    pipeline.verdicts = (hang,)
    pipeline.replicas[1].num_tokens = 0
    for _ in range(6):
        pipeline.replicas[0].num_waited_tokens += 100
        pipeline.inflight = {"trainer": (OpenSpan("stage", "weight_sync_pause", 0.0, 21.0, 6),)}
        verdict = pipeline.passes(5.0)
    assert verdict is not None
    assert [cause.component for cause in verdict.causes] == ["rollout replica 1"]
    assert verdict.chain[1] == "rank 0 stuck in weight_sync_pause"
    pipeline.inflight = {"trainer": (OpenSpan("stage", "backward", 0.0, 21.0, 6),)}
    verdict = pipeline.judged()
    assert verdict is not None
    assert [cause.kind for cause in verdict.causes] == ["still engine", "hang"]


def test_the_one_engine_that_a_pause_waits_for_is_named_though_no_other_goes_on():
    pipeline = Pipeline()
    pipeline.replicas[0].pid = 20
    pipeline.steps(6)

    def causes_after(pause_seconds, **waits):
        pause = OpenSpan("stage", "weight_sync_pause", 0.0, pause_seconds, 6)
        pipeline.inflight = {"trainer": (pause,), **waits}
        verdict = pipeline.passes(2.0)
        assert verdict is not None
        return [cause.component for cause in verdict.causes]

    told_to_wait = {"rollout 0": (OpenSpan("wait", "policy", 0.0, 9.0, 6),)}
    pipeline.passes(9.0)
    assert causes_after(9.0, **told_to_wait) == []
    assert causes_after(11.0, **told_to_wait) == ["rollout replica 1"]
    assert causes_after(13.0) == [], "which of the two it waits for is not known"


def test_an_engine_that_stands_while_steps_close_holds_rollout_up():
    pipeline = Pipeline(wait={"collector": 1.2})
    pipeline.steps(5)
    pipeline.replicas[1].num_tokens = 0
    verdict = pipeline.steps(8)
    assert (verdict.bound_by, verdict.causes[0].component) == ("rollout", "rollout replica 1")
    assert verdict.chain[0].startswith("Ranks of trainer wait for samples for 1.2 s")
    assert "has made no progress" in verdict.chain[-1]


def test_an_engine_that_is_gone_is_not_told_to_stand():
    pipeline = Pipeline(wait={"collector": 1.2})
    pipeline.steps(5)
    pipeline.replicas[1].num_tokens = 0
    pipeline.replicas[1].state = "gone"
    verdict = pipeline.steps(8)
    (cause,) = verdict.causes
    assert (verdict.bound_by, cause.kind) == ("rollout", "lost engine")
    assert cause.sentence == "Engine replica 1 is gone: nobody answers."


def test_an_engine_that_answers_late_now_and_then_is_not_lost():
    pipeline = Pipeline(wait={"collector": 1.2})
    pipeline.steps(5)
    pipeline.replicas[1].state = "slow"
    pipeline.replicas[1].since_seconds = pipeline.now_seconds
    assert pipeline.steps(2).causes == ()
    causes = pipeline.steps(8).causes
    assert [cause.kind for cause in causes] == ["lost engine"]


@pytest.mark.parametrize(
    ("kind", "name", "state"),
    [
        ("wait", "collector", "found"),
        ("stage", "backward", "insufficient evidence"),
        ("stage", "checkpoint", "insufficient evidence"),
    ],
)
def test_a_verdict_does_not_outlive_steps_that_do_not_close(kind, name, state):
    pipeline = Pipeline()
    pipeline.steps(8)
    pipeline.inflight = {"trainer": (OpenSpan(kind, name, 0.0, 70.0, 9),)}
    verdict = pipeline.passes(8.0)
    assert verdict is not None
    assert verdict.state == "clear"
    pipeline.inflight = {}
    verdict = pipeline.passes(42.0)
    assert verdict is not None
    assert verdict.state == "insufficient evidence"
    pipeline.inflight = {"trainer": (OpenSpan(kind, name, 0.0, 70.0, 9),)}
    verdict = pipeline.passes(20.0)
    assert verdict is not None
    assert verdict.state == state
    if state == "found":
        assert verdict.chain == (
            "Rank 1 has been in collector for 70 s.",
            "No step of trainer has ended for 70 s; a step usually takes 1.3 s.",
            "No engine has made progress on any request for 70 s.",
        )


def test_a_wait_that_has_just_begun_does_not_explain_a_standstill():
    pipeline = Pipeline()
    pipeline.steps(8)
    pipeline.inflight = {"trainer": (OpenSpan("wait", "send@0", 0.0, 0.016, 9),)}
    verdict = pipeline.passes(70.0)
    assert verdict is not None
    assert verdict.summary.startswith("No step of trainer has ended for 70 s")
    pipeline.inflight = {"trainer": (OpenSpan("wait", "send@0", 0.0, 69.0, 9),)}
    verdict = pipeline.passes(1.0)
    assert verdict is not None
    assert verdict.chain[0] == "Rank 1 has been in send for 69 s."


def test_engines_that_are_told_to_wait_are_not_stalled():
    pipeline = Pipeline(wait={"collector": 1.2})
    pipeline.steps(5)
    for _ in range(12):  # both: for new weights, or while nobody asks
        verdict = pipeline.passes(5.0)
    assert verdict is not None
    assert verdict.bound_by != "stalled"
    pipeline.replicas[1].running = 0.0
    for _ in range(12):
        pipeline.replicas[0].num_waited_tokens += 10
        verdict = pipeline.passes(5.0)
    assert verdict is not None
    assert verdict.bound_by != "stalled"


def test_a_tool_call_that_takes_longer_than_before_is_told_by_the_call():
    pipeline = Pipeline(wait={"collector": 0.8}, told={TOOL: 0.02, TURNS: 2.0, GENERATION: 0.3})
    pipeline.steps(12)
    pipeline.told[TOOL] = 0.62
    verdict = pipeline.steps(5)
    (cause,) = verdict.causes
    assert (verdict.bound_by, cause.unit, cause.since_step) == ("tool", "seconds a call", 13)
    assert cause.amount == pytest.approx(0.6)


def test_tools_that_take_most_of_an_episode_are_told_without_a_habit():
    reported = {TOOL: 1.0, TURNS: 3.0, GENERATION: 0.1}
    verdict = Pipeline(wait={"collector": 0.8}, told=reported).steps(4)
    assert (verdict.bound_by, verdict.causes[0].amount) == ("tool", 0.5)


def test_weight_sync_that_grew_is_taken_apart_to_its_receiver():
    reported = {receiver("0"): 0.05, receiver("1"): 0.05}
    parts = {"weight_sync_pause": 0.02, "weight_sync_transfer": 0.05}
    pipeline = Pipeline(stage={"forward": 0.4, "backward": 0.8} | parts, told=reported)
    pipeline.steps(12)
    pipeline.stage["weight_sync_transfer"] = 1.05
    pipeline.told[receiver("1")] = 1.05
    verdict = pipeline.steps(5)
    (cause,) = verdict.causes
    assert cause.component == "weight transfer to rollout replica 1"
    assert (verdict.bound_by, cause.since_step) == ("weight sync", 13)
    assert cause.amount == pytest.approx(1.0)


def test_groups_that_are_thrown_away_are_told_against_the_habit():
    pipeline = Pipeline(wait={"collector": 0.8}, told={STALE: 0.0})
    pipeline.steps(12)
    pipeline.told[STALE] = 3.0
    (cause,) = pipeline.steps(5).causes
    assert (cause.component, cause.amount, cause.unit) == ("sample queue", 3.0, "groups")


def test_fewer_groups_in_flight_are_told_with_the_wait_they_add():
    pipeline = Pipeline(wait={"collector": 0.4}, told={ACTIVE: 8.0})
    pipeline.steps(12)
    pipeline.told[ACTIVE], pipeline.wait = 1.0, {"collector": 1.9}
    (cause,) = pipeline.steps(5).causes
    assert cause.component == "rollout concurrency"
    assert cause.amount == pytest.approx(1.5)


def test_what_other_verdicts_name_is_taken_from_them():
    pipeline = Pipeline(wait={"barrier": 0.6})
    pipeline.verdicts = (
        Verdict("straggler", "found", "trainer", "rank 1 is slower", ("1",), lost_seconds=0.6),
    )
    verdict = pipeline.steps(5)
    (cause,) = verdict.causes
    assert (verdict.bound_by, cause.component, cause.amount) == ("peers", "trainer rank 1", 0.6)
    pipeline.verdicts = (Verdict("hang", "found", "trainer", "rank 0 hangs", ("0",), step=6),)
    assert pipeline.steps(1).bound_by == "stalled"


def test_a_small_growth_does_not_hide_what_binds():
    parts = {"weight_sync_load": 0.1}
    pipeline = Pipeline(stage={"forward": 0.2, "backward": 0.4} | parts)
    pipeline.steps(12)
    pipeline.stage["weight_sync_load"], pipeline.wait = 0.5, {"collector": 2.0}
    verdict = pipeline.steps(5)
    assert verdict.bound_by == "rollout"
    assert [cause.kind for cause in verdict.causes] == ["weight sync"]
    assert not any("weight sync" in sentence for sentence in verdict.chain)


def test_a_fault_that_ends_is_not_told_any_more():
    pipeline = Pipeline(wait={"collector": 0.1}, told={TOOL: 0.02, TURNS: 2.0, GENERATION: 0.3})
    pipeline.steps(12)
    pipeline.told[TOOL] = 0.62
    assert pipeline.steps(40).causes
    pipeline.told[TOOL] = 0.02
    assert pipeline.steps(4).state == "clear"


@given(
    st.dictionaries(
        st.sampled_from(["forward", "rollout", "reward", "h2d", "weight_sync_load", "tool"]),
        st.floats(0.0, 100.0),
    ),
    st.dictionaries(
        st.sampled_from(["collector", "barrier", "policy", "replay_batch", "collective", "remote"]),
        st.floats(0.0, 100.0),
    ),
)
def test_what_is_lost_is_never_more_than_the_step(stages, waits):
    pipeline = Pipeline(stage={"backward": 0.01} | stages, wait=waits)
    verdict = pipeline.steps(4)
    assert verdict.cost_ratio is None or 0.0 <= verdict.cost_ratio <= 1.0 + 1e-9


def barrier_steps(*late: int) -> tuple[StepRow, ...]:
    """Of two ranks in which one of them, each time another, comes 0.6 s late: it packs."""

    def cell(rank: int, barrier: float) -> StepCell:
        waits = {"barrier": {"": barrier}, "collector": {"": 0.1}}
        work = {"backward": 1.4, "pack": 0.6 - barrier}
        return StepCell(str(rank), TimeSplit(2.1, 2.0 - barrier, 0.0, work, waits), {})

    return tuple(
        StepRow(
            n, "trainer", n * 2.1, n * 2.1 + 2.1, (), None,
            (cell(0, 0.6 * (rank == 1)), cell(1, 0.6 * (rank == 0))),
        )
        for n, rank in enumerate(late)
    )  # fmt: skip


def busy_facts(rows):
    server = ProcessTime("rollout", "0", 20, TimeSplit())
    busy = Verdict("straggler", "insufficient evidence", "trainer", "The host is busy.")
    now = rows[-1].end_seconds
    return PipelineFacts(now_seconds=now, steps=rows, processes=(server,), verdicts=(busy,))


def test_ranks_that_wait_for_the_last_one_lose_what_the_first_one_waits():
    verdict = BottleneckJudge().verdict(busy_facts(barrier_steps(1, 1, 1, 1, 1)))
    assert verdict is not None
    assert (verdict.state, verdict.bound_by) == ("found", "peers")
    assert verdict.cost_seconds == pytest.approx(0.6)


def test_who_is_last_is_said_by_the_straggler_verdict_alone():
    """The same rank is last in every step, and the straggler verdict abstains."""
    verdict = BottleneckJudge().verdict(busy_facts(barrier_steps(1, 1, 1, 1, 1)))
    assert verdict is not None
    assert verdict.causes == ()
    assert verdict.chain[-1] == "The host is busy."


@pytest.mark.parametrize(("stage", "bound"), [("reward", "reward"), ("tool", "tool")])
def test_a_stage_that_others_wait_for_is_told_where_no_framework_tells_it(stage, bound):
    pipeline = Pipeline(wait={"collector": 0.6}, lasts={"rollout": 0.5, stage: 0.05})
    assert pipeline.steps(12).causes == ()
    pipeline.lasts, pipeline.wait = {"rollout": 0.5, stage: 3.0}, {"collector": 2.4}
    verdict = pipeline.steps(5)
    (cause,) = verdict.causes
    assert (verdict.bound_by, cause.component, cause.since_step) == (bound, stage, 13)
    assert cause.amount == pytest.approx(2.95)
    assert cause.sentence == (
        f"{stage.capitalize()} of orchestrator p5 takes 3 s each time; until step 12 it was 0.05 s."
    )


def test_a_queue_that_is_full_is_train_bound_though_nobody_marks_the_wait():
    pipeline = Pipeline(wait={"collector": 0.01}, rollout_wait=0.0, queue_depth={"groups": 8.0})
    assert pipeline.steps(8).bound_by == "train"
    pipeline = Pipeline(wait={"collector": 0.01}, rollout_wait=0.0, queue_depth={"groups": 0.0})
    assert pipeline.steps(8).state == "clear"


def test_a_step_that_stood_is_left_out_and_said():
    pipeline = Pipeline(wait={"collector": 0.6})
    pipeline.steps(10)
    pipeline.wait = {"collector": 79.0}
    pipeline.steps(1)
    pipeline.wait = {"collector": 0.6}
    verdict = pipeline.steps(2)
    assert verdict.cost_seconds == pytest.approx(0.6)
    assert verdict.balance.endswith("Left out: step 11 (80.2 s, unusually long).")


def test_steps_that_closed_between_two_looks_are_part_of_the_habit():
    pipeline = Pipeline(wait={"collector": 0.5})
    for _ in range(12):
        pipeline.close_step()
    assert pipeline.judged() is not None
    pipeline.wait = {"collector": 3.0}
    for _ in range(4):
        pipeline.close_step()
    verdict = pipeline.judged()
    assert verdict is not None
    assert verdict.chain[0].endswith("; until step 12 it was 0.5 s.")


def test_checkpoints_are_left_out_and_said():
    pipeline = Pipeline(wait={"collector": 0.6})
    pipeline.steps(10)
    pipeline.stage["checkpoint"], pipeline.wait["barrier"] = 5.0, 1.0
    pipeline.steps(1)
    del pipeline.stage["checkpoint"], pipeline.wait["barrier"]
    verdict = pipeline.steps(1)
    assert (verdict.bound_by, verdict.cost_seconds) == ("rollout", pytest.approx(0.6))
    assert verdict.balance.endswith("Left out: step 11 (7.8 s, checkpoint or validation).")
