"""What a node tells a hub: all once, then what is new, and together it is the whole again."""

from __future__ import annotations

import time
from dataclasses import replace

from hang_scene import staged
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.agent.telling import Told, newer
from dfx_agent.facts.document import dumped, loaded
from dfx_agent.facts.run import RunFacts
from dfx_agent.job.clock import NodeClock
from dfx_agent.job.node_run import NodeRun

DURATIONS = st.lists(st.integers(0, 3), max_size=20)


@given(before=DURATIONS, added=DURATIONS, num_gone=st.integers(0, 20))
def test_what_was_added_at_the_end_is_found(before, added, num_gone):
    """As far as it can be told: what looks like the end of before may have been added too."""
    now = tuple([*before, *added][-max(1, 20 - num_gone) :])
    new = newer(tuple(before), now)
    assert len(new) <= max(len(added), 0) + (not before)
    assert [*before, *new][-len(now) :] == list(now)[-len([*before, *new]) :]


def test_each_is_told_once_and_all_again_when_asked():
    told: Told[int] = Told(4)
    told.add([1, 2])
    assert (told.news(is_full=False), told.news(is_full=False)) == ((1, 2), ())
    told.add([3, 4, 5, 6, 7])
    assert told.news(is_full=False) == (4, 5, 6, 7)
    assert told.news(is_full=True) == (4, 5, 6, 7)
    told.add([8])
    assert told.news(is_full=False) == (8,)


def taken(node: NodeRun, facts: RunFacts) -> RunFacts:
    read = loaded(dumped(facts))
    node.take(read, read.now_ns)
    return read


def test_increments_make_the_whole(dfx_dir):
    with staged(dfx_dir) as scene:
        scene.agent.tell("node-a")
        ranks = scene.warm_up()
        scene.agent.poll()
        (first,) = scene.agent.facts()
        node = NodeRun("node-a", NodeClock(), first)
        assert first.is_full
        taken(node, first)
        for step in range(5, 9):
            for rank in ranks:
                rank.step(step)
                rank.ended("backward", seconds=step / 10)
                rank.took_part("all_reduce@0", step)
            scene.agent.poll()
            (facts,) = scene.agent.facts()
            assert not facts.is_full
            taken(node, facts)
        (whole,) = scene.agent.facts(is_full=True)
        again = NodeRun("node-a", NodeClock(), whole)
        taken(again, whole)
        assert node.seats == again.seats
        assert set(node.ranks) == {("trainer", str(rank)) for rank in range(4)}
        for key, rank in again.ranks.items():
            known = replace(node.ranks[key], now_ns=rank.now_ns, now_seconds=rank.now_seconds)
            for name in ("stage_durations", "collective_durations", "reached", "operations"):
                assert getattr(known, name) == getattr(rank, name), name
            assert (known.begin_ns, known.pid, known.moved_ns) == (
                rank.begin_ns, rank.pid, rank.moved_ns,
            )  # fmt: skip


def test_what_is_told_does_not_grow_while_nothing_happens(dfx_dir):
    with staged(dfx_dir) as scene:
        scene.agent.tell("node-a")
        scene.warm_up()
        scene.agent.poll()
        scene.agent.facts()
        scene.agent.poll()
        scene.agent.facts()
        scene.agent.poll()
        (facts,) = scene.agent.facts()
        assert (facts.seats, facts.scalars, facts.memory) == ((), (), ())
        assert not any(role.steps for role in facts.steps)
        assert not any(rank.stage_durations for rank in facts.ranks["trainer"])


def test_an_agent_without_a_run_says_that_it_is_there(dfx_dir):
    with staged(dfx_dir) as scene:
        scene.agent.tell("node-a")
        scene.agent.poll()
        (facts,) = scene.agent.facts()
        assert (facts.run, facts.node, facts.seats) == ("", "node-a", ())
        assert facts.now_ns <= time.monotonic_ns()
