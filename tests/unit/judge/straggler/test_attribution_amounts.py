"""How many steps must agree, how much the others lose, and since when: figures of the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.simulated_steps import Job, same_tokens, slower
from dfx_agent.facts.steps import IDLE, RankStep, Step
from dfx_agent.judge.straggler.comparable_ranks import Division
from dfx_agent.judge.straggler.excess import WINDOWS, recurs
from dfx_agent.judge.straggler.judge import straggler_verdict


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{window.num_steps} steps")
def test_as_many_steps_must_be_large_as_the_window_asks_for(window):
    """The mean of all would do: what is missing is that it recurs."""
    small = 0.99 * window.share
    row = [1.0] * window.num_hits + [small] * (window.num_steps - window.num_hits)
    assert recurs(row, window, sigma=0.1, step_seconds=1.0)
    row[0] = small
    assert recurs(row, window._replace(num_hits=0), sigma=small / 3, step_seconds=1.0)
    assert not recurs(row, window, sigma=small / 3, step_seconds=1.0)


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{window.num_steps} steps")
def test_an_excess_in_every_step_must_be_more_than_chance(window):
    row = [0.1] * window.num_steps
    least = 0.1 * window.num_steps**0.5 / window.sigmas
    assert recurs(row, window, sigma=0.99 * least, step_seconds=1.0)
    assert not recurs(row, window, sigma=1.01 * least, step_seconds=1.0)


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{window.num_steps} steps")
def test_an_excess_must_be_a_share_of_a_step(window):
    row = [0.05] * window.num_steps
    assert recurs(row, window, sigma=1e-6, step_seconds=0.99)
    assert not recurs(row, window, sigma=1e-6, step_seconds=1.01)


def changed(steps: list[Step], rank: str, change: Callable[[RankStep], RankStep]) -> list[Step]:
    return [replace(step, ranks={**step.ranks, rank: change(step.ranks[rank])}) for step in steps]


def test_the_amount_is_of_the_wall_time_where_it_denies_the_processor_time():
    """A rank that is slow by sleeping has hardly more processor time, and that is very steady."""
    steps = Job(jitter=0.01, slow=slower(1, 1.3), tokens=same_tokens).steps(10)
    for rank in "0123":
        busy = 0.5 if rank != "1" else 0.58
        steps = changed(steps, rank, lambda entry, busy=busy: replace(entry, busy_seconds=busy))
    verdict = straggler_verdict("t", steps, 1.0)
    assert verdict.ranks == ("1",)
    assert verdict.lost_seconds == pytest.approx(0.3, rel=0.1)


def test_the_amount_is_of_the_steadier_processor_time_where_the_wall_time_agrees():
    steps = Job(jitter=0.08, slow=slower(1, 1.3), tokens=same_tokens, seed=3).steps(10)
    for rank in "0123":
        busy = 1.0 if rank != "1" else 1.28
        steps = changed(steps, rank, lambda entry, busy=busy: replace(entry, busy_seconds=busy))
    verdict = straggler_verdict("t", steps, 1.0)
    assert verdict.ranks == ("1",)
    assert verdict.lost_seconds == pytest.approx(0.28, abs=0.001)


@pytest.mark.parametrize("share", [0.6, 0.8])
def test_the_others_lose_no_more_than_they_waited(share):
    """Part of the rank's excess was at a place where nobody waits for it."""
    steps = Job(jitter=0.0, slow=slower(1, 1.3), tokens=same_tokens).steps(10)
    excess = straggler_verdict("t", steps, 1.0).lost_seconds
    beside = excess / share - excess

    def longer(of: RankStep) -> RankStep:
        parts = {**of.parts, IDLE: of.parts[IDLE] + beside}
        return replace(of, wall_seconds=of.wall_seconds + beside, parts=parts)

    verdict = straggler_verdict("t", changed(steps, "1", longer), 1.0)
    assert verdict.lost_seconds == pytest.approx(excess, rel=0.01)


def test_the_others_lose_no_more_than_the_rank_is_longer():
    """They waited for more than this rank: for what all wait, as a slow network."""
    steps = Job(jitter=0.0, slow=slower(1, 1.3), tokens=same_tokens).steps(10)
    excess = straggler_verdict("t", steps, 1.0).lost_seconds
    for rank in "023":
        steps = changed(
            steps, rank, lambda entry: replace(entry, waited_seconds=entry.waited_seconds + 0.2,
                                            wall_seconds=entry.wall_seconds + 0.2)
        )  # fmt: skip
    assert straggler_verdict("t", steps, 1.0).lost_seconds == pytest.approx(excess, rel=0.01)


@pytest.mark.parametrize(("better", "since"), [((), 6), ((15,), 6), ((14, 17), 6), ((15, 16), 17)])
def test_one_better_step_does_not_end_the_row_that_it_began_with_and_two_do(better, since):
    slow = slower(2, 1.3, since=6)

    def seldom(step: int, rank: int, part: tuple[str, str], seconds: float) -> float:
        return seconds if step in better else slow(step, rank, part, seconds)

    steps = Job(jitter=0.01, slow=seldom, tokens=same_tokens).steps(30)
    assert straggler_verdict("t", steps, 1.0).since_seconds == since


@pytest.mark.parametrize("newest_with_all", [9, 10])
def test_records_that_were_lost_in_the_newest_step_alone_count(newest_with_all):
    steps = Job(slow=slower(1, 1.5)).steps(10)
    steps = [replace(step, num_lost=3 * (step.step > newest_with_all)) for step in steps]
    is_lost = steps[-1].step > newest_with_all
    assert ("3 records were lost" in straggler_verdict("t", steps, 1.0).summary) is is_lost


@pytest.mark.parametrize(("coverage", "is_judged"), [(None, True), (0.5, True), (0.49, False)])
def test_half_of_the_collectives_is_enough_to_judge(coverage, is_judged):
    steps = Job(slow=slower(1, 1.5)).steps(10)
    assert (straggler_verdict("t", steps, coverage).state == "found") is is_judged


@pytest.mark.parametrize(("second", "named"), [(1.2, ("1",)), (1.3, ("1",)), (1.4, ("1", "5"))])
def test_of_several_the_worst_is_told_of_and_who_is_nearly_as_bad_with_it(second, named):
    first, other = slower(1, 1.5), slower(5, second)

    def both(step: int, rank: int, part: tuple[str, str], seconds: float) -> float:
        return other(step, rank, part, first(step, rank, part, seconds))

    same_work = Division((tuple("01234567"),))
    verdict = straggler_verdict(
        "t", Job(8, jitter=0.01, slow=both, tokens=same_tokens).steps(20), 1, division=same_work
    )
    alone = Job(8, jitter=0.01, slow=first, tokens=same_tokens).steps(20)
    assert verdict.ranks == named
    assert verdict.lost_seconds == pytest.approx(
        straggler_verdict("t", alone, 1).lost_seconds, rel=0.05
    )
