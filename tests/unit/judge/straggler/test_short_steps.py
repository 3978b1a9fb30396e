"""What is said of short steps that were taken together: amounts of one, and how many they are."""

from __future__ import annotations

from dataclasses import replace

from bench.simulated_steps import Job, same_tokens, slower
from dfx_agent.facts.steps import Step
from dfx_agent.judge.straggler.judge import straggler_verdict
from dfx_agent.judge.straggler.single_steps import span
from dfx_agent.snapshot import Verdict


def grouped(steps: list[Step]) -> list[Step]:
    """As if each were the mean of 30 like it."""
    return [replace(step, step=step.step * 30, num_steps=30) for step in steps]


def told(steps: list[Step]) -> Verdict:
    return straggler_verdict("t", grouped(steps), 1.0)


def test_a_slow_rank_costs_so_much_of_a_step():
    steps = Job(jitter=0.01, slow=slower(2, 1.2), tokens=same_tokens).steps(5)
    alone, together = straggler_verdict("t", steps, 1.0), told(steps)
    assert (together.ranks, together.summary) == (alone.ranks, alone.summary)
    assert any("of the last 5 groups of about 30 steps" in line for line in together.evidence)


def test_groups_of_hardly_more_than_one_step_are_not_called_groups_of_about_1_steps():
    steps = Job(jitter=0.01).steps(4)
    assert span(steps) == "4 steps"
    assert span([replace(steps[0], num_steps=2), *steps[1:]]) == "4 groups of one or more steps"


def test_too_few_of_them_are_counted_in_seconds():
    assert told(Job(jitter=0.01).steps(2)).summary == (
        "Too early to judge: 60 steps seen, 0.75 s of steps are needed."
    )


def test_a_stall_lasts_as_long_as_all_of_them():
    steps = Job(jitter=0.01).steps(20)
    entry = steps[-2].ranks
    late = {rank: replace(item, **_stalled(item, rank)) for rank, item in entry.items()}
    steps[-2] = replace(steps[-2], ranks=late)
    verdict = told(steps)
    assert verdict.state == "insufficient evidence"
    assert "Rank 1 was delayed by 60.3 s in 30 short steps." in verdict.summary


def _stalled(of: object, rank: str) -> dict[str, float]:
    wall, waited = of.wall_seconds + 2.0, of.waited_seconds  # type: ignore[attr-defined]
    return {"wall_seconds": wall, "waited_seconds": waited + (0.0 if rank == "1" else 2.0)}
