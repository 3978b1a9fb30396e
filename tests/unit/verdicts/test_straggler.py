"""From records in segments to the straggler verdict of a run, and to what each rank waited."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.snapshot import RunRow, TimeSplit
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import BLOCKING, COLLECTIVE, STAGE, STEP


class Worker:
    """One process of a job, written with stamps of our own choosing."""

    def __init__(self, folder: Path, rank: int, role: str = "trainer") -> None:
        identity = Identity(run="r", role=role, rank=rank, world_size=3)
        self.segment = SegmentWriter(str(folder), identity, num_records=4096)
        self.names = {name: self.segment.add_name(name) for name in ("rollout", "all_reduce@0")}
        self.span = 0

    def emit(self, kind: int, name: str, begin: int, end: int, number: int) -> None:
        self.span += 1
        name_id = self.names.get(name, 0)
        span = self.span if kind != STEP else 0
        self.segment.emit(begin, end, 4.0, number, span, 0, 1, kind, name_id)


def run_row(agent: Agent) -> RunRow:
    return agent.snapshot().runs[0]


def waits_of(split: TimeSplit) -> float:
    return sum(sum(stages.values()) for stages in split.wait_seconds.values())


def by_arrival(arrivals: Mapping[int, float], last: float) -> dict[str, float]:
    return {str(rank): last - arrival for rank, arrival in arrivals.items()}


def test_from_records_to_verdict(dfx_dir):
    """Three ranks meet once a step of 0.3 s; rank 1 comes 72 ms after the others."""
    agent = Agent(Config(str(dfx_dir)))
    workers = [Worker(dfx_dir, rank) for rank in range(3)]
    arrivals, length = {0: 0.6, 1: 0.85, 2: 0.62}, 300_000_000
    first = time.monotonic_ns()
    for step in range(1, 9):
        begin = first + (step - 1) * length
        while time.monotonic_ns() < begin + length:  # nothing is recorded before it was
            time.sleep(0.01)
        for rank, worker in enumerate(workers):
            at = begin + int(arrivals[rank] * length)
            worker.emit(STEP, "", begin, begin, step)
            worker.emit(STAGE, "rollout", begin + 1, at, step)
            worker.emit(COLLECTIVE | BLOCKING, "all_reduce@0", at, begin + int(0.9 * length), step)
        agent.poll()
    agent.poll()
    (verdict,) = [v for v in run_row(agent).verdicts if v.kind == "straggler"]
    assert (verdict.state, verdict.ranks, verdict.stage) == ("found", ("1",), "rollout")
    assert verdict.lost_seconds == pytest.approx(0.24 * length / 1e9, rel=0.05)
    peers = by_arrival(arrivals, 0.85)
    for rank in run_row(agent).ranks:
        (row,) = rank.collectives
        whole = row.peers_seconds + row.transfer_seconds
        assert row.unmatched_seconds == 0
        assert row.num_collectives == 8
        assert row.num_bytes == 32
        assert whole == pytest.approx(waits_of(rank.totals), rel=0.01)
        share = peers[rank.rank] / (peers[rank.rank] + 0.05)
        assert row.peers_seconds / whole == pytest.approx(share, abs=0.01)
    agent._folder.close()


def test_servers_that_count_no_steps_are_no_stragglers_of_each_other(dfx_dir):
    """Beside trainers that do; alone nothing says yet that they will not."""
    agent = Agent(Config(str(dfx_dir)))
    for rank in range(2):
        now = time.monotonic_ns()
        Worker(dfx_dir, rank, "rollout").emit(STAGE, "rollout", now - 1000, now, -1)
    agent.poll()
    assert judged(agent) == {"rollout"}
    for rank in range(2):
        now = time.monotonic_ns()
        Worker(dfx_dir, rank).emit(STEP, "", now, now, 1)
    agent.poll()
    agent.poll()
    assert judged(agent) == {"trainer"}


def judged(agent: Agent) -> set[str]:
    return {v.role for v in run_row(agent).verdicts if v.kind == "straggler"}
