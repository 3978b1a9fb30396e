"""Who makes the others wait, concluded from closed steps made by hand: no process, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.simulated_steps import Job, same_tokens, slower
from dfx_agent.facts.steps import IDLE, TRANSFER, RankStep, RoleSteps, SchedTimes, Step
from dfx_agent.judge.straggler import judge as judging
from dfx_agent.judge.straggler.judge import StragglerJudge
from dfx_agent.snapshot import Verdict

WORK, STEP_SECONDS = 1.0, 1.3


def rank_step(work: float, wall: float = STEP_SECONDS, **known) -> RankStep:
    """Alone for ``work``; the rest of the wall time it waits for its peers."""
    transfer = 0.02
    parts = {IDLE: 0.0, TRANSFER: transfer, ("stage", "forward"): work - transfer}
    return RankStep(wall, wall - work, parts, {"response": 1000.0}, **known)


def steps(num_steps: int, *works: float, **known) -> tuple[Step, ...]:
    """Each rank a hair apart from step to step, as no two steps are alike."""
    return tuple(
        Step(
            number,
            number * STEP_SECONDS,
            0,
            {
                str(rank): rank_step(work * (1 + 0.002 * ((number * 7 + rank * 3) % 5)), **known)
                for rank, work in enumerate(works)
            },
        )
        for number in range(1, num_steps + 1)
    )


def role(known: tuple[Step, ...], **told) -> RoleSteps:
    facts = {"coverage_ratio": 1.0, "num_ranks": 4, "world_size": 4, **told}
    return RoleSteps("trainer", known, **facts)


def judged(known: tuple[Step, ...], **told) -> Verdict:
    verdict = StragglerJudge().verdict(role(known, **told))
    assert verdict is not None
    return verdict


def test_a_slow_rank_is_found_with_stage_and_amount():
    found = judged(steps(8, WORK, WORK, 1.25, WORK))
    assert (found.state, found.ranks, found.stage) == ("found", ("2",), "forward")
    assert found.cause == "slower at equal tokens"
    assert found.lost_seconds == pytest.approx(0.25, rel=0.1)


def test_equal_ranks_are_clear():
    assert judged(steps(20, WORK, WORK, WORK, WORK)).state == "clear"


@pytest.mark.parametrize(
    ("known", "told", "reason"),
    [
        ((), {}, "Too early to judge: 0 steps seen, 3 are needed."),
        (steps(1, WORK, WORK), {}, "Too early to judge: 1 step seen"),
        (steps(2, WORK, 1.25), {}, "Too early to judge: 2 steps seen"),
        (steps(8, WORK), {}, "Only one rank of this role is visible"),
        (steps(8, WORK, 1.25), {"coverage_ratio": 0.3}, "Only 30 % of the collectives"),
    ],
)
def test_too_little_is_known(known, told, reason):
    verdict = judged(known, **told)
    assert verdict.state == "insufficient evidence"
    assert verdict.summary.startswith(reason)


def test_lost_records_and_ranks_that_nobody_saw_wait_are_no_evidence():
    known = steps(8, WORK, WORK, 1.25, WORK)
    lost = (*known[:-1], replace(known[-1], num_lost=3))
    assert judged(lost).summary.startswith("3 records were lost in the last 8 steps")
    deaf = tuple(
        replace(
            step,
            ranks={
                rank: replace(entry, wall_seconds=entry.work_seconds, waited_seconds=0.0, parts={
                    IDLE: 0.0, TRANSFER: 0.0, ("stage", "forward"): entry.work_seconds,
                })
                for rank, entry in step.ranks.items()
            },
        )
        for step in known
    )  # fmt: skip
    assert judged(deaf).summary.startswith("Neither collectives nor waits were recorded")


def test_on_a_host_that_is_busy_with_others_nobody_is_blamed():
    busy = steps(8, WORK, WORK, 1.25, WORK, processor=SchedTimes(3 * 10**8, 7 * 10**8))
    verdict = judged(busy)
    assert (verdict.state, verdict.ranks) == ("insufficient evidence", ())
    assert verdict.summary.startswith("Cannot tell which rank is slow: this machine has more")


def test_steps_before_the_agent_could_see_the_host_do_not_count():
    """As after an attach: the newest two alone are too few."""
    seen = steps(8, WORK, 1.25, processor=SchedTimes(10**9, 0))
    reported = judged((*steps(8, WORK, 1.25)[:6], *seen[6:]))
    assert reported.summary.startswith("Too early to judge: 2 steps seen")


def test_a_job_of_one_rank_has_no_straggler_and_part_of_a_job_has_one_to_come():
    alone = role(steps(8, WORK), num_ranks=1, world_size=1)
    assert StragglerJudge().verdict(alone) is None
    assert StragglerJudge().verdict(replace(alone, world_size=-1)) is None
    reported = StragglerJudge().verdict(replace(alone, world_size=8))
    assert reported is not None
    assert reported.state == "insufficient evidence"


def test_where_the_last_stage_of_a_pipeline_is_longer_no_rank_of_another_is_blamed():
    """Today the verdict does not know the layout: at most it names the ranks of that stage."""
    verdict = judged(steps(20, *([WORK] * 6), 1.25, 1.25), num_ranks=8, world_size=8)
    assert set(verdict.ranks) <= {"6", "7"}


def test_ranks_that_came_or_went_begin_the_count_anew():
    known = (*steps(8, WORK, WORK, 1.25, WORK)[:7], *steps(8, WORK, WORK, 1.25)[7:])
    assert judged(known).summary.startswith("Too early to judge: 1 step seen")


def test_a_role_is_judged_once_for_each_step_and_goes_on_from_the_verdict_before(monkeypatch):
    asked = []
    known = steps(8, WORK, WORK, 1.25, WORK)

    def verdict(name, told, coverage, named, _division, _remembered, _looks):
        asked.append((len(told), coverage, named))
        return Verdict("straggler", "found", name, "slow", ranks=("2",))

    monkeypatch.setattr(judging, "straggler_verdict", verdict)
    judge = StragglerJudge()
    for facts in (role(known[:7]), role(known[:7]), role(known), role(known, coverage_ratio=0.5)):
        judge.verdict(facts)
    assert asked == [(7, 1.0, ()), (8, 1.0, ("2",)), (8, 0.5, ("2",))]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_remembered_of_steps_changes_no_verdict(seed):
    """Of a job with tokens, noise, and a rank that becomes slow and fast again."""
    job = Job(5, 0.04, 0.02, tokens=same_tokens, work_per_token=0.3, seed=seed)
    job.slow, job.stalls = slower(seed, 1.25, since=10, until=24), 0.1
    known, judge, named = job.steps(40), StragglerJudge(), ()
    for end in range(1, len(known) + 1):
        last = tuple(known[max(0, end - 32) : end])
        anew = judging.straggler_verdict("trainer", last, 1.0, named)
        facts = RoleSteps("trainer", last, 1.0, 5, 5)
        assert judge.verdict(facts) == anew
        named = anew.ranks if anew.state == "found" else ()
