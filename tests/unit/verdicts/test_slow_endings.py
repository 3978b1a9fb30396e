"""Processes that take their time to end: what is said of them meanwhile, and who was first."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hang_scene import Scene, ending, hold_in, staged

FAILS, IS_TOLD = ending("os._exit(1)"), ending("os.kill(os.getpid(), 15)")


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def test_who_was_killed_is_to_blame_also_when_the_others_fail_after_it(scene):
    """They lose their connection at once: their exit handlers run between the same readings."""
    ranks = scene.warm_up(runs=dict.fromkeys((0, 2, 3), FAILS))
    ranks[1].dies()
    for other in (0, 2, 3):
        ranks[other].segment.finish()
    found = scene.look(0, "crash")
    assert (found.state, found.ranks) == ("found", ("1",))
    for other in (0, 2, 3):
        ranks[other].ends(is_reaped=False)
    found = scene.look(20, "crash")
    assert (found.state, found.ranks) == ("found", ("1",))
    assert "rank 0 failed with exit code 1" in found.evidence


def test_a_rank_ended_alone_is_to_blame_not_those_that_fail_later(scene):
    ranks = scene.warm_up(runs={0: FAILS, 1: IS_TOLD, 2: FAILS, 3: FAILS})
    ranks[1].ends(is_reaped=False)
    for other in (0, 2, 3):
        ranks[other].segment.finish()
    scene.look()
    for other in (0, 2, 3):
        ranks[other].ends(is_reaped=False)
    found = scene.look(20, "crash")
    assert (found.state, found.ranks) == ("found", ("1",))
    assert "(SIGTERM) while other ranks continued" in found.summary


def test_an_exception_is_a_crash_however_long_its_process_takes_to_end(scene):
    ranks = scene.warm_up(runs={2: FAILS})
    ranks[2].segment.finish()
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    scene.look()
    for kind in ("hang", "crash"):
        verdict = scene.look(14, kind)
        assert verdict.state == "insufficient evidence"
        assert "shutting down" in verdict.summary
    assert scene.look(140).cause == "left", "for so long nothing but that can be said"
    ranks[2].ends(is_reaped=False)
    found = scene.look(150, "crash")
    assert (found.state, found.ranks, found.step) == ("found", ("2",), 4)
    assert scene.look(151).state == "clear"


def test_a_death_that_no_agent_saw_has_the_time_of_its_last_record(scene):
    (rank,) = scene.add(1)
    rank.step(1)
    last_record = time.time()
    rank.dies()
    found = scene.look(60, "crash")
    assert found.ranks == ("0",)
    assert found.since_seconds == pytest.approx(last_record, abs=5)
    assert "unobserved" in found.evidence[0]
