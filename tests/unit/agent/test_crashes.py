"""A death is a crash and no hang; who died first is to blame."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from hang_scene import WORLD_SIZE, Scene, hold_in, staged


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def test_a_death_is_a_crash_and_no_hang(scene):
    ranks = scene.warm_up()
    ranks[2].enters("backward")
    scene.look()
    ranks[2].dies()
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    verdict = scene.look(0.5, "crash")
    assert (verdict.state, verdict.ranks, verdict.stage) == ("found", ("2",), "backward")
    assert (verdict.cause, verdict.step) == ("died", 4)
    assert scene.look(40).state == "clear"
    assert scene.look(40, "crash").ranks == ("2",)


def test_a_death_inside_the_collective_is_a_crash_and_no_hang(scene):
    ranks = scene.warm_up()
    hold_in(ranks, "all_reduce@0", 5)
    scene.look()
    ranks[1].dies()
    assert scene.look(60).state == "clear"
    assert scene.look(60, "crash").ranks == ("1",)


def test_who_dies_later_was_taken_along(scene):
    ranks = scene.warm_up()
    ranks[2].dies()
    scene.look()
    for rank in ranks:
        rank.dies()
    verdict = scene.look(1, "crash")
    assert verdict.ranks == ("2",)
    assert any("ranks 0, 1, 3 died" in line for line in verdict.evidence)


def test_ranks_that_die_together_are_not_put_in_order(scene):
    for rank in scene.warm_up():
        rank.dies()
    verdict = scene.look(1, "crash")
    assert verdict.state == "insufficient evidence"
    assert verdict.ranks == ()


def test_an_orderly_end_is_neither(scene):
    for rank in scene.warm_up():
        rank.segment.finish()
    assert scene.look(1000).state == "clear"
    assert scene.look(1000, "crash").state == "clear"


def test_the_hang_stays_the_verdict_when_the_job_is_killed_for_it(scene):
    ranks = scene.warm_up()
    ranks[2].enters("backward")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    assert scene.look(14).ranks == ("2",)
    for rank in ranks:
        rank.dies()
    assert scene.look(20).ranks == ("2",)
    assert scene.look(20, "crash").state == "clear"


def test_a_restart_ends_the_verdicts_of_the_attempt_before(scene):
    ranks = scene.warm_up()
    ranks[2].dies()
    assert scene.look(1, "crash").state == "found"
    for rank in ranks:
        rank.dies()
    scene.look(1)
    scene.add(WORLD_SIZE)
    assert scene.look(2, "crash").state == "clear"
    assert scene.look(2).state == "clear"
