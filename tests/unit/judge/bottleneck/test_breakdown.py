"""Where a step of a job goes whose roles take turns: the parts add up to the step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.judge.bottleneck.breakdown import whole_percents
from dfx_agent.judge.bottleneck.code_samples import place_of
from dfx_agent.judge.bottleneck.judge import BottleneckJudge
from dfx_agent.judge.bottleneck.pipeline_facts import PipelineFacts, ProcessTime
from dfx_agent.judge.bottleneck.step_parts import step_time
from dfx_agent.judge.bottleneck.step_shares import step_shares
from dfx_agent.snapshot import StepCell, StepRow, TimeSplit, Verdict
from dfx_agent.snapshot.bottleneck import is_breakdown

LOOP = "<module> train.py:120>main train.py"
SAMPLES = {
    f"marked||{LOOP}:91>update train.py:50": 30.0,
    f"unmarked|data|{LOOP}:88>load_batch train.py:12>__getitem__ data.py:5": 20.0,
    f"unmarked|data|{LOOP}:88>load_batch train.py:13": 10.0,
    f"unmarked||{LOOP}:91>update train.py:57": 10.0,
}


def split(stages, waits=None, idle=0.0):
    waits = waits or {}
    active = sum(stages.values())
    waited = sum(sum(by_stage.values()) for by_stage in waits.values())
    return TimeSplit(active + waited + idle, active, idle, stages, waits)


def row(number, begin, *splits, role="trainer"):
    cells = tuple(StepCell(str(rank), item, {}) for rank, item in enumerate(splits))
    end = begin + max(item.wall_seconds for item in splits)
    return StepRow(number, role, begin, end, (), None, cells)


def rows_of(*steps):
    """Each step is a tuple of splits, one of each rank."""
    rows, begin = [], 0.0
    for number, splits in enumerate(steps, 1):
        rows.append(row(number, begin, *splits))
        begin = rows[-1].end_seconds
    return tuple(rows)


def judged(rows, processes=(), verdicts=()):
    now = rows[-1].end_seconds
    facts = PipelineFacts(now_seconds=now, steps=rows, processes=processes, verdicts=verdicts)
    verdict = BottleneckJudge().verdict(facts)
    assert verdict is not None
    return verdict


GRPO = split(
    {"actor_update": 0.04, "backward": 0.4, "forward": 0.13, "rollout": 0.31, "old_logprob": 0.28,
     "reward": 0.02},
    {"collective": {"backward": 0.2, "weight_sync": 0.04}, "barrier": {"": 0.3}},
    idle=0.02,
)  # fmt: skip


def test_the_parts_of_a_synchronous_step_add_up_and_waits_inside_stages_are_waits():
    verdict = judged(rows_of(*[(GRPO, GRPO)] * 6))
    assert verdict.summary == (
        "A step takes 1.74 s: 33 % update, 31 % waiting for other ranks, 18 % rollout, "
        "16 % log-probs, 2 % other."
    )
    assert is_breakdown(verdict)
    assert (verdict.state, verdict.bound_by, verdict.cost_seconds) == ("found", None, None)
    assert verdict.chain[1] == (
        "The largest part is update (mostly backward): without it a step would take 1.17 s."
    )
    assert sum(part.ratio for part in verdict.parts) == pytest.approx(1.0)


def test_a_bound_costs_no_more_than_the_step():
    """Stages of tasks overlap; and the rank that waits longest may have the longest step."""
    overlap = TimeSplit(2.0, 2.0, 0.0, {"rollout": 2.0, "rollout_turn": 1.5, "backward": 0.2}, {})
    long, short = split({}, {"collector": {"": 4.0}}), split({"backward": 1.0})
    for splits in ((overlap,), (long, short)):
        shares = step_shares(rows_of(splits))
        assert shares.ratio("rollout") == 1.0
        assert shares.by_bound["rollout"] == shares.step_seconds


def test_a_stage_of_the_jobs_own_is_its_own_part_and_no_update():
    verdict = judged(rows_of(*[(split({"simulate": 3.0, "backward": 1.0}),)] * 6))
    assert verdict.summary == "A step takes 4 s: 75 % simulate, 25 % update."


def test_waits_are_those_of_a_mean_rank_not_of_the_longest():
    early, late = split({"backward": 1.0}, {"barrier": {"": 1.0}}), split({"backward": 2.0})
    verdict = judged(rows_of(*[(early, late)] * 6))
    assert verdict.summary == "A step takes 2 s: 75 % update, 25 % waiting for other ranks."


def test_who_is_waited_for_is_said_by_the_straggler_verdict():
    early, late = split({"backward": 1.0}, {"barrier": {"": 1.0}}), split({"backward": 2.0})
    slow = Verdict("straggler", "found", "trainer", "Rank 1 is slow.", ("1",), lost_seconds=1.0)
    verdict = judged(rows_of(*[(early, late)] * 6), verdicts=(slow,))
    assert verdict.chain[-1] == "Rank 1 is slow."
    (cause,) = verdict.causes
    assert (cause.component, cause.kind, cause.amount) == ("trainer rank 1", "slow rank", 1.0)
    assert not judged(rows_of(*[(early, late)] * 6)).causes


ROLLOUT = split({"rollout": 7.4, "backward": 0.1})
UPDATE = split({"backward": 0.1, "optimizer": 0.03})


def test_a_ppo_loop_keeps_its_rollout_though_it_is_many_times_the_median():
    cycle = [(ROLLOUT,), *[(UPDATE,)] * 19]
    verdict = judged(rows_of(*cycle * 4, *[(UPDATE,)] * 3))
    # of a cycle: 7.4 s rollout, 0.1 + 19 * 0.13 s update
    assert verdict.summary == "A step takes 0.498 s on average: 74 % rollout, 26 % update."
    assert verdict.balance == ""


def test_an_unmarked_rollout_that_returns_is_part_of_the_job():
    unmarked = split({"backward": 0.1}, idle=7.4)
    verdict = judged(rows_of(*[(unmarked,), *[(UPDATE,)] * 19] * 3))
    assert verdict.summary.endswith("on average: 74 % unmarked code, 26 % update.")


def test_a_single_standstill_is_left_out_and_said():
    stood = split({"backward": 0.1}, {"collective": {"": 60.0}})
    verdict = judged(rows_of(*[(UPDATE,)] * 60, (stood,), *[(UPDATE,)] * 9))
    assert "waiting" not in verdict.summary
    assert verdict.balance == "Left out: step 61 (60.1 s, unusually long)."


def test_checkpoints_are_left_out_also_between_cycles():
    saved = split({"checkpoint": 30.0, "backward": 0.1})
    cycle = [(ROLLOUT,), *[(UPDATE,)] * 19]
    verdict = judged(rows_of(*cycle, *cycle, (saved,), *cycle))
    assert "checkpoint" not in verdict.summary
    assert "checkpoint or validation" in verdict.balance


def processes(wall, rollout=0.0, samples=None, rank="0"):
    stages = {"rollout": rollout, "backward": wall - rollout}
    totals = TimeSplit(wall, wall, 0.0, stages, {})
    return (ProcessTime("trainer", rank, 9, totals, code_samples=samples or {}),)


def test_steps_of_milliseconds_are_measured_by_running_totals():
    """200 retained steps cover 2 s: none of them is the rollout that takes 90 % of the time."""
    judge, short = BottleneckJudge(), split({"backward": 0.01})
    for second in (1, 12, 30, 60):
        begin = second * 30
        rows = tuple(row(begin + n, second + n * 0.01, short) for n in range(200))
        of_ranks = processes(float(second), 0.9 * second)
        facts = PipelineFacts(now_seconds=float(second), steps=rows, processes=of_ranks)
        verdict = judge.verdict(facts)
        assert verdict is not None
        if second == 1:
            assert verdict.state == "insufficient evidence"
            assert verdict.summary.startswith("Too early to say")
    assert verdict.summary == "A step takes 0.0333 s on average: 90 % rollout, 10 % update."
    last = tuple(row(1801 + n, 61 + n * 0.01, short) for n in range(200))
    ended = judge.verdict(PipelineFacts(now_seconds=63.0, steps=last, processes=()))
    assert ended is not None
    assert ended.summary == verdict.summary, "all ranks have ended: 60 s have been seen"


def test_unmarked_code_is_named_by_stack_samples_with_the_line_that_marks_it():
    rows = rows_of(*[(split({"backward": 1.0}, idle=2.0),)] * 6)
    verdict = judged(rows, processes(1.0, samples=SAMPLES))
    assert verdict.summary == "A step takes 3 s: 67 % unmarked code, 33 % update."
    largest, place = verdict.chain[1:]
    assert largest == (
        "The largest part is unmarked code (mostly `load_batch`): without it a step would take 1 s."
    )
    assert place.startswith("About 50 % of the step is in `load_batch` (train.py:88)")
    assert place.endswith('Wrap it in `with dfx.stage("data"):` to see it.')
    assert verdict.state == "found"


@pytest.mark.parametrize(
    ("samples", "text", "stage"),
    [
        # code written in the loop itself
        ({f"unmarked||{LOOP}:70": 9.0, f"marked||{LOOP}:91>update a.py:1": 9.0},
         "`main` (train.py:70)", "NAME"),
        ({"unmarked||<module> ppo.py:40>collect_rollout ppo.py:22>env_step ppo.py:9": 12.0,
          "unmarked||<module> ppo.py:42>update ppo.py:29": 6.0},
         "`collect_rollout` (ppo.py:40)", "rollout"),
        ({"unmarked||<module> loop.py:19": 12.0, "marked||<module> loop.py:21": 2.0},
         "module-level code (loop.py:19)", "NAME"),
    ],
)  # fmt: skip
def test_the_place_is_what_the_training_loop_calls(samples, text, stage):
    place = place_of(samples)
    assert place is not None
    assert (place.text, place.stage) == (text, stage)


def test_few_samples_name_nobody():
    assert place_of({f"unmarked||{LOOP}:70": 7}) is None


def test_unmarked_code_without_samples_is_insufficient_evidence():
    verdict = judged(rows_of(*[(split({"backward": 1.0}, idle=3.0),)] * 6))
    assert verdict.state == "insufficient evidence"
    assert verdict.chain[-1].startswith("75 % of the step is in code that dfx-agent cannot")


def test_roles_that_take_turns_are_one_side_also_with_a_rollout_server():
    """The trainer waits while the server rolls out: a breakdown, nothing is bound by anything."""
    step = split({"backward": 1.0}, {"remote": {"rollout": 2.0}})
    judge = BottleneckJudge()
    for number in range(3, 9):
        now = 3.0 * number
        rows = rows_of(*[(step,)] * number)
        served = TimeSplit(now, 2.0 * number, 0.0, {"rollout": 2.0 * number})
        server = ProcessTime("rollout", "0", 20, served)
        facts = PipelineFacts(now_seconds=now, steps=rows, processes=(server,))
        verdict = judge.verdict(facts)
    assert verdict is not None
    assert verdict.summary == "A step takes 3 s: 67 % waiting for remote rollout, 33 % update."


STAGES = st.dictionaries(
    st.sampled_from(["forward", "rollout", "step", "checkpoint", "own", "weight_sync_load"]),
    st.floats(0.0, 100.0),
)
WAITS = st.dictionaries(
    st.sampled_from(["collector", "barrier", "policy", "collective", "remote", "logger"]),
    st.dictionaries(st.sampled_from(["", "backward", "rollout"]), st.floats(0.0, 100.0)),
)


@given(st.lists(st.tuples(STAGES, WAITS, st.floats(0.01, 100.0)), min_size=1, max_size=4))
def test_parts_always_sum_to_the_step(ranks):
    time = step_time(split(*rank) for rank in ranks)
    assert sum(part.seconds for part in time.parts()) == pytest.approx(time.step_seconds)
    assert sum(part.ratio for part in time.parts()) == pytest.approx(1.0)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9).filter(lambda r: sum(r) > 0.01))
def test_whole_percents_add_up_to_a_hundred(ratios):
    exact = [ratio / sum(ratios) for ratio in ratios]
    whole = whole_percents(exact)
    assert sum(whole) == 100
    assert all(abs(w - 100 * e) < 1.0 + 1e-9 for w, e in zip(whole, exact, strict=True))
