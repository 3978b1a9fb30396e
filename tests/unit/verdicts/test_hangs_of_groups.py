"""Groups of a part of the ranks: who is not of a group is not missed in it."""

from __future__ import annotations

import pytest
from hang_scene import hold_in, staged

from dfx_agent.facts.rank import Arrival, RankFacts, Waiter
from dfx_agent.judge.words import waits_text


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
    assert "all_gather of group tp" in verdict.summary
    assert "all_reduce" not in verdict.summary


def test_each_rank_is_said_to_wait_where_it_waits(scene):
    ranks = scene.warm_up()
    for rank in ranks[2:]:
        rank.took_part("all_reduce@2", 79)
    scene.look()
    hold_in(ranks[:2], "ddp_gradients@0", 5)
    ranks[2].waits("all_reduce@2", 80)
    ranks[3].enters("backward")
    verdict = scene.look(14)
    assert verdict.ranks == ("3",)
    assert (
        ". Ranks 0, 1 wait in ddp_gradients, rank 2 waits in all_reduce of group 2 for "
        in verdict.summary
    )


def test_whose_device_alone_waits_is_in_the_operation_of_the_others():
    hooked, device, ahead, _ = (RankFacts(label=str(rank)) for rank in range(4))
    waiters = [
        Waiter(device, Arrival("", "0", 5, 1)),
        Waiter(hooked, Arrival("all_reduce", "0", 5, 1)),
        Waiter(ahead, Arrival("", "tp", 9, 1)),
        Waiter(ahead, Arrival("", "0", 5, 2)),
    ]
    result = "ranks 0, 1 wait in all_reduce@0 #5, rank 2 waits in collective@tp #9"
    assert waits_text(waiters) == result
