"""A run that trains and reports nothing to judge by is not told to be clear of divergence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dfx_agent.agent.run import RunFold
from dfx_agent.job.incidents.conclude import standing_of
from dfx_agent.judge.divergence.verdict import unseen_verdict
from dfx_agent.snapshot import Verdict


def fold_of(*counters: dict[str, float]) -> RunFold:
    fold = RunFold("r")
    fold.processes = {
        ("trainer", str(rank)): SimpleNamespace(
            counters=told, filed_as=SimpleNamespace(role="trainer")
        )
        for rank, told in enumerate(counters)
    }
    return fold


@pytest.mark.parametrize("counters", [(), ({},), ({"tokens": 5.0}, {"optimizer_steps": 0.0})])
def test_a_run_without_any_optimizer_step_has_nothing_to_judge(counters):
    assert fold_of(*counters)._divergence() is None


def test_a_run_that_trains_unseen_is_unsure_and_not_clear():
    verdict = fold_of({}, {"optimizer_steps": 3.0})._divergence()
    assert verdict == unseen_verdict("trainer")
    calm = Verdict("hang", "clear", "trainer", "no rank waits")
    standing = standing_of((calm, verdict), (), has_steps=True)
    assert standing.state == "insufficient evidence"
    assert "Checked: hang. Divergence: No loss, gradient norm, reward" in standing.reason
