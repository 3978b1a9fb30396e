"""Where the host lets ranks wait for a processor nobody is blamed; where it does not, somebody is.

``steps_at_load_25.json``: 450 steps of a healthy DDP job, 2 ranks on 2 cores beside other people's
tests, load 12 to 25, as the agent read them (2026-11-22): number, then for each rank microseconds
of wall time, waiting for peers, processor time, and the kernel's run and run-delay.
``steps_at_load_4.json``: 50 more of it, where each rank had two thirds of a processor.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.simulated_steps import Job, same_tokens, slower
from dfx_agent.facts.steps import IDLE, TRANSFER, RankStep, SchedTimes, Step
from dfx_agent.judge.straggler.judge import straggler_verdict
from dfx_agent.snapshot import Verdict


def rank_step(wall: int, waited: int, busy: int, ran: int, delayed: int) -> RankStep:
    parts = {IDLE: 0.0, TRANSFER: 0.0, ("stage", "train"): (wall - waited) / 1e6}
    had = SchedTimes(ran * 1000, delayed * 1000)
    return RankStep(wall / 1e6, waited / 1e6, parts, None, None, busy / 1e6, had)


def recorded(load: int = 25) -> list[Step]:
    rows = json.loads(Path(__file__).with_name(f"steps_at_load_{load}.json").read_text())
    return [
        Step(row[0], row[0] / 10, 0, {"0": rank_step(*row[1:6]), "1": rank_step(*row[6:11])})
        for row in rows
    ]


def had(step: Step, processors: dict[str, SchedTimes | None]) -> Step:
    ranks = {r: replace(entry, processor=processors.get(r)) for r, entry in step.ranks.items()}
    return replace(step, ranks=ranks)


def verdicts(steps: list[Step]) -> list[Verdict]:
    reported: list[Verdict] = []
    for n in range(3, len(steps) + 1):
        named = reported[-1].ranks if reported and reported[-1].state == "found" else ()
        reported.append(straggler_verdict("t", steps[max(0, n - 32) : n], 1.0, named))
    return reported


def test_a_healthy_job_on_a_loaded_host_is_accused_of_nothing():
    reported = verdicts(recorded())
    assert {verdict.state for verdict in reported} == {"insufficient evidence"}
    assert all(v.summary.startswith("Cannot tell which rank is slow: ") for v in reported[3:])


def test_without_the_kernels_count_the_same_steps_accuse_both_ranks():
    """What the count is for: else this file of steps proves nothing."""
    reported = verdicts([had(step, {}) for step in recorded()])
    assert {rank for verdict in reported for rank in verdict.ranks} == {"0", "1"}


def test_who_slept_on_a_host_that_let_it_wait_as_long_is_accused_of_nothing():
    steps = recorded(4)
    assert not {rank for verdict in verdicts(steps) for rank in verdict.ranks}
    unseen = [had(step, {}) for step in steps]
    assert {rank for verdict in verdicts(unseen) for rank in verdict.ranks} == {"0"}


def times(ran: float, delayed: float) -> SchedTimes:
    return SchedTimes(int(ran * 1e9), int(delayed * 1e9))


def slow_job(processors: dict[str, SchedTimes | None]) -> Verdict:
    steps = Job(jitter=0.01, slow=slower(2, 1.2), tokens=same_tokens).steps(5)
    return straggler_verdict("t", [had(step, processors) for step in steps], 1.0)


def test_on_a_quiet_host_the_slow_rank_is_named_after_5_steps():
    quiet = dict.fromkeys("0123", times(1.0, 0.01))
    assert slow_job(quiet).ranks == ("2",)


def test_less_than_half_of_a_processor_is_too_little_to_judge_by():
    starved = {**dict.fromkeys("0123", times(1.0, 0.05)), "1": times(0.4, 0.6)}
    verdict = slow_job(starved)
    assert (verdict.state, verdict.ranks) == ("insufficient evidence", ())
    assert verdict.summary == (
        "Cannot tell which rank is slow: this machine has more runnable threads than CPUs. Rank 1 "
        "got a CPU 40 % of the time it was runnable, the other ranks 95 %."
    )
    assert slow_job({**starved, "1": times(0.6, 0.4)}).ranks == ("2",)


def test_a_share_that_is_small_of_next_to_nothing_holds_nobody_up():
    """As a rank that waits for its device: it hardly needs a processor."""
    idle = dict.fromkeys("0123", times(0.01, 0.03))
    assert slow_job(idle).ranks == ("2",)


def test_an_excess_that_the_rank_waited_for_a_processor_is_not_its_own():
    delayed = {**dict.fromkeys("0123", times(1.0, 0.05)), "2": times(1.0, 0.2)}
    verdict = slow_job(delayed)
    assert (verdict.state, verdict.ranks) == ("insufficient evidence", ())
    assert verdict.summary == (
        "Cannot tell whether rank 2 is slow. It takes 17 % of a step longer than the other ranks, "
        "and waits for a CPU for 73 % of that."
    )
    assert slow_job({**delayed, "2": times(1.15, 0.12)}).ranks == ("2",), "less than half of it"


@pytest.mark.parametrize(("ran", "delayed", "is_named"), [(1.0, 0.08, True), (1.0, 0.12, False)])
def test_an_excess_that_the_rank_slept_needs_a_host_with_room(ran, delayed, is_named):
    """All wait alike for a processor, and what rank 2 slept 0.2 s for may have waited too."""
    verdict = slow_job(dict.fromkeys("0123", times(ran, delayed)))
    assert (verdict.ranks == ("2",)) is is_named
    assert ("What it waits for may lack a CPU" in verdict.summary) is not is_named


def test_a_kernel_that_does_not_count_leaves_the_verdict_as_it_was():
    assert slow_job({}).ranks == ("2",)
    assert slow_job({"0": times(0.1, 1.0)}).state == "insufficient evidence"


@pytest.mark.parametrize("num_busy", [5, 20])
def test_the_newest_and_all_steps_count(num_busy):
    busy = dict.fromkeys("01", times(0.3, 0.7))
    steps = Job(2, jitter=0.01).steps(32)
    quiet = [had(step, dict.fromkeys("01", times(1.0, 0.0))) for step in steps]
    steps = [*quiet[:-num_busy], *(had(step, busy) for step in steps[-num_busy:])]
    assert straggler_verdict("t", quiet, 1.0).state == "clear"
    assert straggler_verdict("t", steps, 1.0).state == "insufficient evidence"


@pytest.mark.parametrize(
    ("crowd", "ran_more", "is_named"),
    [(9.0, 0.0, False), (9.0, 0.19, True), (3.0, 0.0, True), (None, 0.0, True)],
)
def test_who_sleeps_in_a_crowd_waits_for_somebody_without_a_turn(crowd, ran_more, is_named):
    """A trainer whose rollout server shares a host that 9 threads want for each processor."""
    asleep = dict.fromkeys("0123", SchedTimes(10**8, 0, crowd))
    processors = {**asleep, "2": SchedTimes(10**8 + int(ran_more * 1e9), 0, crowd)}
    verdict = slow_job(processors)
    assert verdict.ranks == (("2",) if is_named else ())
    assert ("this machine has 9 threads per CPU" in verdict.summary) is not is_named


def test_only_steps_in_which_the_kernel_counted_every_rank_tell_of_the_host():
    steps = Job(jitter=0.01, slow=slower(2, 1.2), tokens=same_tokens).steps(5)
    starved = {**dict.fromkeys("0123", times(1.0, 0.01)), "1": times(0.4, 0.6)}
    whole = [had(step, starved) for step in steps]
    assert straggler_verdict("t", whole, 1.0).state == "insufficient evidence"
    partly = [had(steps[0], {**starved, "1": None}), *whole[1:]]
    assert straggler_verdict("t", partly, 1.0).state == "insufficient evidence"
    never = [had(step, {**starved, "1": None}) for step in steps]
    assert straggler_verdict("t", never, 1.0).ranks == ("2",)


@pytest.mark.parametrize(("delayed", "is_judged"), [(0.045, True), (0.055, False)])
def test_waits_of_a_twentieth_of_a_step_hold_a_rank_up(delayed, is_judged):
    """A step of this job takes 1 s; both ran for less than they were delayed."""
    steps = Job(jitter=0.0, slow=slower(2, 1.2), tokens=same_tokens).steps(5)
    seconds = max(entry.wall_seconds for entry in steps[0].ranks.values())
    few = dict.fromkeys("0123", times(0.01, delayed * seconds))
    verdict = straggler_verdict("t", [had(step, few) for step in steps], 1.0)
    assert (verdict.ranks == ("2",)) is is_judged


@pytest.mark.parametrize("num_seen", [1, 2, 3])
def test_steps_that_nobody_saw_the_host_in_are_not_judged_with_those_that_were(num_seen):
    """As after a restart of the agent, which reads older steps again."""
    quiet = dict.fromkeys("0123", times(1.0, 0.01))
    steps = Job(jitter=0.01, slow=slower(2, 1.5), tokens=same_tokens).steps(9)
    seen = [had(step, quiet) for step in steps[-num_seen:]]
    verdict = straggler_verdict("t", [*steps[:-num_seen], *seen], 1.0)
    assert verdict.ranks == (("2",) if num_seen == 3 else ())
    if num_seen < 3:
        assert verdict.summary.startswith(f"Too early to judge: {num_seen} step")


def test_ranks_that_got_the_cpu_alike_are_not_told_apart():
    starved = dict.fromkeys("0123", times(0.25, 0.75))
    assert slow_job(starved).summary == (
        "Cannot tell which rank is slow: this machine has more runnable threads than CPUs. "
        "The ranks got a CPU 25 % of the time they were runnable."
    )
