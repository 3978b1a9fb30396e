"""A run that trains and reports nothing to judge by is not told to be clear of divergence."""

from __future__ import annotations

import pytest

from dfx_agent.facts.scalars import UpdateCounts
from dfx_agent.facts.seat import ProcessId
from dfx_agent.job.incidents.conclude import standing_of
from dfx_agent.job.judging import JobJudge
from dfx_agent.judge.divergence.verdict import unseen_verdict
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.faults import Faults


def judge_of(*num_made: float) -> JobJudge:
    """Of ranks that made so many updates."""
    judge = JobJudge("r", Faults())
    updates = [
        UpdateCounts(ProcessId("trainer", str(rank), 7), 1, 0.0, made, 0.0)
        for rank, made in enumerate(num_made)
    ]
    judge.close({}, updates, (), is_whole=True)
    return judge


@pytest.mark.parametrize("num_made", [(), (0.0,), (0.0, 0.0)])
def test_a_run_without_any_optimizer_step_has_nothing_to_judge(num_made):
    assert judge_of(*num_made).divergence() is None


def test_a_run_that_trains_unseen_is_unsure_and_not_clear():
    judge = judge_of(0.0, 3.0)
    verdict = judge.divergence()
    assert verdict == unseen_verdict("trainer")
    judge.close({}, (), (), is_whole=True)
    assert judge.divergence() == verdict, "its ranks have ended"
    calm = Verdict("hang", "clear", "trainer", "no rank waits")
    standing = standing_of((calm, verdict), (), has_steps=True)
    assert standing.state == "insufficient evidence"
    assert "Checked: hang. Divergence: No loss, gradient norm, reward" in standing.reason
