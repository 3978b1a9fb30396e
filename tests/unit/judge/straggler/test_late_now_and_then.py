"""A rank that is late in some steps only: no straggler, and nothing is clear."""

from __future__ import annotations

import pytest

from bench.simulated_steps import ROLLOUT, Job, same_tokens, slower
from dfx_agent.facts.steps import Part
from dfx_agent.judge.straggler.judge import straggler_verdict
from dfx_agent.snapshot import Verdict


def told(job: Job, num_steps: int) -> list[Verdict]:
    """After each step from the 33rd on."""
    steps = job.steps(num_steps)
    return [straggler_verdict("t", steps[n - 32 : n], 1.0) for n in range(33, num_steps + 1)]


def late(every: int, factor: float) -> Job:
    def slow(step: int, rank: int, part: Part, seconds: float) -> float:
        is_late = rank == 1 and step % every == 0 and part == ROLLOUT
        return seconds * (factor if is_late else 1)

    return Job(slow=slow, tokens=same_tokens)


def test_a_rank_late_in_each_tenth_step_is_told():
    """Seen: 0.4 s in each tenth step of 0.12 s, "no rank makes the others wait"."""
    verdicts = told(late(10, 4), 80)
    assert {verdict.state for verdict in verdicts} == {"insufficient evidence"}
    assert {verdict.ranks for verdict in verdicts} == {("1",)}
    last = verdicts[-1]
    assert last.summary.startswith("Rank 1 delayed the other ranks in 4 of 32 steps, by ")
    assert last.step == 80
    assert last.evidence[0].startswith("in steps 50, 60, 70, 80; a step takes ")


def test_what_costs_less_than_a_straggler_may_is_clear():
    """0.6 of a step in 2 of 32: 4 %."""
    verdicts = told(late(16, 1.9), 80)
    assert verdicts[20].state == "clear"


@pytest.mark.parametrize("factor", [1.5, 1.8])
def test_a_straggler_that_is_well_again_is_not_late_now_and_then(factor):
    """Seen: "held the others up in 5 of the last 32 steps, not step after step" after its end."""
    verdicts = told(Job(slow=slower(1, factor, since=40, until=50), tokens=same_tokens), 90)
    states = [verdict.state for verdict in verdicts]
    assert states[50 - 33] == "found"
    assert states[60 - 33 :] == ["clear"] * 31
