"""Groups of a part of the ranks: who is not of a group is not missed in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from hang_scene import hold_in, staged


@pytest.fixture
def scene(dfx_dir):
    with staged(dfx_dir) as staged_scene:
        yield staged_scene


def test_only_members_of_the_group_are_missed(scene):
    ranks = scene.warm_up()
    for rank in ranks[:2]:
        rank.took_part("all_gather@tp", 1)
    scene.look()
    ranks[0].waits("all_gather@tp", 2)
    for rank in ranks[1:]:
        rank.enters("backward")
    verdict = scene.look(14)
    assert (verdict.state, verdict.cause, verdict.ranks) == ("found", "stuck", ("1",))


def test_a_collective_of_a_part_that_does_not_finish_is_what_the_others_wait_for(scene):
    ranks = scene.warm_up()
    for rank in ranks[2:]:
        rank.took_part("all_gather@tp", 1)
    scene.look()
    hold_in(ranks[:2], "all_reduce@0", 5)
    hold_in(ranks[2:], "all_gather@tp", 2)
    assert scene.look(29).state == "clear"
    verdict = scene.look(31)
    assert (verdict.state, verdict.cause) == ("found", "collective does not finish")
    assert verdict.ranks == ("2", "3")
    assert "all_gather@tp #2" in verdict.summary
    assert "all_reduce" not in verdict.summary
