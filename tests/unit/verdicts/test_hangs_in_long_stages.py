"""Rollout, validation and checkpoint take long by habit: who is in one is not soon called stuck."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hang_scene import Scene, hold_in, staged


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


@pytest.mark.parametrize("stage", ["rollout", "validation", "checkpoint", "save_hf", "eval_math"])
def test_a_long_stage_on_one_rank_is_no_hang_for_ten_minutes(scene, stage):
    ranks = scene.warm_up()
    ranks[0].enters(stage)
    ranks[0].enters("backward")
    hold_in(ranks[1:], "barrier@0", 5)
    verdict = scene.look(590)
    assert verdict.state == "clear"
    assert "rank 0" in verdict.summary
    assert scene.look(601).ranks == ("0",)


@pytest.mark.parametrize("stage", ["rollout", "validation", "checkpoint"])
def test_a_long_stage_on_all_ranks_is_no_hang_at_all(scene, stage):
    for rank in scene.warm_up(stage):
        rank.enters(stage)
    verdict = scene.look(590)
    assert (verdict.state, verdict.cause) == ("insufficient evidence", "")
    assert verdict.summary.startswith("No step has ended for 590 s;")


def test_a_rollout_that_sleeps_may_wait_for_one_slow_tool(scene):
    """Rollouts of a moment so far; 45 s, so that who is stuck is paged within a minute."""
    ranks = scene.warm_up("rollout", num_steps=9)
    ranks[2].enters("rollout")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 10)
    scene.look(20)
    assert scene.look(43).state == "clear"
    assert scene.look(47).ranks == ("2",)
