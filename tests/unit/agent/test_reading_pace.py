"""When a reading may be left out, against real segments."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hang_scene import Rank

from dfx_agent.agent import agent as module
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import QUEUE, SCALAR

NUM_RECORDS = 64


def new_segment(folder, rank: int = 0) -> SegmentWriter:
    time.sleep(0.02)  # the clock of a folder's time goes in ticks
    identity = Identity(run="r", role="trainer", rank=rank)
    return SegmentWriter(str(folder), identity, num_records=NUM_RECORDS)


@pytest.fixture
def agent(dfx_dir, monkeypatch) -> Iterator[Agent]:
    monkeypatch.setattr(module, "_YOUNG_SECONDS", 0.0)
    agent = Agent(Config(str(dfx_dir)))
    yield agent
    agent._folder.close()


def may_rest(agent: Agent, after_seconds: float = 0.2) -> bool:
    """So long after the last reading."""
    return agent._may_rest(agent._polled_seconds + after_seconds)


def test_readings_are_left_out_for_a_second_while_nobody_looks(dfx_dir, agent):
    new_segment(dfx_dir)
    agent.poll()

    assert may_rest(agent, 0.2)
    assert may_rest(agent, 0.8)
    assert not may_rest(agent, 1.0)


def test_every_reading_is_made_while_somebody_looks(dfx_dir, agent):
    new_segment(dfx_dir)
    agent.poll()
    agent.snapshot()

    assert not may_rest(agent)
    assert may_rest(agent, 0.6)


def test_every_reading_is_made_before_a_process_comes_and_while_it_is_young(
    dfx_dir, agent, monkeypatch
):
    agent.poll()
    assert not may_rest(agent)

    monkeypatch.setattr(module, "_YOUNG_SECONDS", 60.0)
    new_segment(dfx_dir)
    agent.poll()
    assert not may_rest(agent)


def test_a_new_segment_is_read_at_once(dfx_dir, agent):
    new_segment(dfx_dir)
    agent.poll()
    assert may_rest(agent)

    new_segment(dfx_dir, rank=1)
    assert not may_rest(agent)


def test_a_death_is_read_at_once(dfx_dir, agent):
    rank = Rank(dfx_dir, 0)
    agent.poll()
    assert may_rest(agent)

    rank.dies()
    assert not may_rest(agent)


@pytest.mark.parametrize(("num_records", "rests"), [(7, True), (8, False)])
def test_a_ring_that_fills_fast_is_read_at_every_turn(dfx_dir, agent, num_records, rests):
    segment = new_segment(dfx_dir)
    agent.poll()
    for _ in range(num_records):
        now = time.monotonic_ns()
        segment.emit(now, now, 1.0, 0, 0, 0, 0, QUEUE, segment.add_name("depth"))
    agent.poll()

    assert may_rest(agent) == rests


def test_a_reading_of_many_steps_loses_no_rank(dfx_dir):
    """As when nobody looked for a while, or the agent came late: one rank is read after another."""
    ranks = [SegmentWriter(str(dfx_dir), Identity("r", "trainer", rank=rank)) for rank in (0, 1)]
    names = [rank.add_name("x") for rank in ranks]
    for step in range(1, 41):
        for number, (rank, name) in enumerate(zip(ranks, names, strict=True)):
            now = time.monotonic_ns()
            rank.emit(now, now, float(step + number), step, 0, 0, 0, SCALAR, name)
    agent = Agent(Config(str(dfx_dir)))
    agent.poll()
    (run,) = agent.snapshot().runs
    (history,) = agent.scalar_history("r", ["x"])
    agent.stop()
    assert run.num_stale_scalars == 0
    assert history.steps == tuple(range(1, 41))
    assert history.values == tuple(step + 0.5 for step in range(1, 41))
