"""A thread that goes on beside the one that trains does not hide that this one is stuck."""

from __future__ import annotations

import time

import pytest
from hang_scene import hold_in, staged

from dfx_agent.wire.records import BLOCKING, COLLECTIVE


@pytest.fixture
def scene(dfx_dir):
    with staged(dfx_dir) as staged_scene:
        yield staged_scene


def test_a_heartbeat_thread_does_not_hide_a_stuck_one(scene):
    ranks = scene.warm_up()
    for step in (5, 6, 7):  # a thread of rank 1 reduces in a group of its own, as all the time
        for rank in ranks:
            rank.step(step)
            rank.ended("backward")
        ranks[1].took_part("all_reduce@hb", step, thread=2)
        scene.look()
    hold_in([ranks[0], *ranks[2:]], "all_reduce@0", 5)
    ranks[1].enters("backward")
    assert scene.look(9).state == "clear"
    time.sleep(0.5)
    ranks[1].took_part("all_reduce@hb", 8, thread=2)
    verdict = scene.look(62)
    assert verdict.ranks == ("1",)
    assert verdict.cause == "stuck"
    ranks[1].leaves()
    ranks[1].enters("all_reduce@hb", COLLECTIVE | BLOCKING, 9, thread=2)
    assert scene.look(62).ranks == ("1",)  # its heartbeat waits for that of another rank
