"""Hangs with sends and receives in them: who waits for whom, and who is at the end of the chain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hang_scene import Scene, hold_in, staged
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.judge.hang.deadlock import circle


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def test_a_receive_and_a_collective_that_wait_for_each_other_are_named(scene):
    ranks = scene.warm_up()
    ranks[0].waits("all_reduce@0", 5)
    hold_in(ranks[2:], "all_reduce@0", 5)
    ranks[1].receives_from(0)
    assert scene.look(29).state == "insufficient evidence"
    verdict = scene.look(31)
    assert (verdict.state, verdict.cause) == ("found", "circular wait")
    assert verdict.ranks == ("0", "1")
    assert "rank 0 waits in all_reduce for rank 1" in verdict.summary
    assert "rank 1 waits in recv from rank 0" in verdict.summary


def test_a_chain_of_receives_leads_to_the_rank_that_is_stuck(scene):
    ranks = scene.warm_up()
    ranks[0].enters("backward")
    for rank in ranks[1:]:
        rank.receives_from(rank.rank - 1)
    verdict = scene.look(14)
    assert (verdict.state, verdict.cause, verdict.ranks) == ("found", "stuck", ("0",))
    assert "Rank 1 waits in recv from rank 0" in verdict.summary
    assert "rank 3 waits in recv from rank 2" in verdict.summary


def test_a_chain_through_sends_and_groups_leads_to_the_rank_that_is_stuck(scene):
    ranks = scene.warm_up()
    for rank in ranks:
        rank.took_part(f"all_to_all@{rank.rank // 2 + 1}", 1)
    ranks[0].waits("all_to_all@1", 2)
    ranks[1].sends_to(3)
    ranks[2].waits("all_to_all@2", 2)
    ranks[3].enters("backward")
    verdict = scene.look(14)
    assert (verdict.cause, verdict.ranks) == ("stuck", ("3",))
    assert "rank 1 waits in send to rank 3" in verdict.summary


def test_two_ranks_that_send_to_each_other_hang(scene):
    ranks = scene.warm_up()
    ranks[0].sends_to(1)
    ranks[1].sends_to(0)
    verdict = scene.look(31)
    assert (verdict.cause, verdict.ranks) == ("circular wait", ("0", "1"))


def test_a_transfer_that_does_not_finish_names_both_ends(scene):
    ranks = scene.warm_up()
    ranks[2].sends_to(3)
    ranks[3].receives_from(2)
    assert scene.look(29).state == "clear"
    verdict = scene.look(31)
    assert (verdict.cause, verdict.ranks) == ("collective does not finish", ("2", "3"))


def test_a_transfer_that_always_takes_long_is_no_circle(scene):
    ranks = scene.warm_up()
    for sequence in (5, 6, 7):
        for rank in ranks:
            rank.took_part("recv@0", sequence, seconds=20.0)
    scene.look()
    ranks[0].receives_from(1)
    ranks[1].receives_from(0)
    assert scene.look(99).state == "clear"
    assert scene.look(101).cause == "circular wait"


def test_a_pipeline_whose_first_stage_computes_within_its_limit_is_clear(scene):
    ranks = scene.add(4)
    for step in range(1, 5):
        for rank in ranks:
            rank.step(step)
            rank.ended("forward", 20.0)
    ranks[0].enters("forward")
    for rank in ranks[1:]:
        rank.receives_from(rank.rank - 1)
    verdict = scene.look(60)
    assert verdict.state == "clear"
    assert "for rank 0, which has been in forward" in verdict.summary


def test_a_receive_from_a_rank_that_is_not_seen_here_leaves_it_open(scene):
    ranks = scene.add(2, world_size=8)
    for rank in ranks:
        rank.step(1)
    ranks[0].receives_from(5)
    ranks[1].receives_from(0)
    verdict = scene.look(60)
    assert verdict.state == "insufficient evidence"
    assert "Rank 0 waits in recv from rank 5" in verdict.summary
    assert "Rank 5 is not observed by this agent." in verdict.summary


def test_a_receive_from_any_source_next_to_a_collective_is_judged(scene):
    """The very state that stopped all reading: a wait without a number beside one with."""
    ranks = scene.warm_up()
    hold_in([ranks[0], *ranks[2:]], "all_reduce@0", 5)
    ranks[1].waits("recv@0")
    verdict = scene.look(121)
    assert verdict.state == "insufficient evidence"
    assert "Rank 1 waits in recv for" in verdict.summary


@given(st.dictionaries(st.integers(0, 8), st.lists(st.integers(0, 8), max_size=4), max_size=9))
def test_a_circle_is_found_exactly_where_there_is_one(misses):
    found = circle(misses)
    following = zip(found, found[1:] + found[:1], strict=True)
    assert all(other in misses[node] for node, other in following)
    assert len(set(found)) == len(found)
    left = dict(misses)  # taking out who misses nobody, until nobody is left or all miss somebody
    while free := [n for n, others in left.items() if not any(o in left for o in others)]:
        left = {n: others for n, others in left.items() if n not in free}
    assert bool(found) == bool(left)
