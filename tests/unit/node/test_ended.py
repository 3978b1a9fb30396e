"""However many processes and runs end, the agent stays small, and no count goes back."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_scene import rank_row, run_row
from matched_scene import SECOND, Run

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.base import bounded_dict
from dfx_agent.base.bounded_dict import BoundedDict
from dfx_agent.catalogue.native.time_series import ScalarStore
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.node.ended import KEEP_PROCESSES, KEEP_RUNS
from dfx_agent.node.process import Process
from dfx_agent.wire import Identity, SegmentWriter, layout
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    COUNT,
    SCALAR,
    STAGE,
    STEP,
    TOKENS,
)

NUM = 600


@pytest.fixture
def agent(dfx_dir) -> Iterator[Agent]:
    agent = Agent(Config(str(dfx_dir)))
    yield agent
    agent._folder.close()


def begin(folder: Path, **known) -> SegmentWriter:
    fields = {"run": "r", "role": "worker", **known}
    return SegmentWriter(str(folder), Identity(**fields), num_records=layout.MIN_NUM_RECORDS)


def live(folder: Path, steps: range = range(1, 3), **known) -> SegmentWriter:
    """One process that does a little of everything; it has closed nothing."""
    segment = begin(folder, **known)
    stage, text, group = (segment.add_name(name) for name in ("rollout", "k", "all_reduce@0"))
    for step in steps:
        now = time.monotonic_ns()
        segment.emit(now, now, 0.0, step, 0, 0, 0, STEP, 0)
        segment.emit(now, now + 9, 0.0, step, step, 0, 1, STAGE, stage)
        segment.emit(now + 1, now + 5, 8.0, step, 90 + step, 0, 1, COLLECTIVE | BLOCKING, group)
        for kind in (TOKENS, COUNT, SCALAR):
            segment.emit(now, now, 1.0, step, 0, 0, 0, kind, text)
    return segment


def end(segment: SegmentWriter) -> None:
    segment.finish()
    segment.close()


def counters(agent: Agent) -> dict[str, float]:
    """Series of /metrics -> value."""
    text = PrometheusExporter(agent).render(None)[0].decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines if re.match(r"dfx_\w+_total\b", name)}


def num_processes() -> int:
    gc.collect()
    return sum(type(item) is Process for item in gc.get_objects())


def test_many_ended_processes_of_one_run(dfx_dir, agent, monkeypatch):
    monkeypatch.setattr(bounded_dict, "_MAX_ENTRIES", 64)
    main = live(dfx_dir, role="trainer", rank=0, world_size=1)
    agent.poll()
    before, num_objects, others = counters(agent), 0, num_processes()
    for i in range(1, NUM + 1):
        end(live(dfx_dir, rank=i))
        if i % 50 == 0:
            agent.poll()
            now = counters(agent)
            back = {k for k in before.keys() & now if now[k] < before[k]}
            assert not back
            before = now
        if i == NUM - 200:
            gc.collect()
            num_objects = len(gc.get_objects())
    agent.poll()
    (run,) = agent.snapshot().runs
    assert [row.rank for row in run.ranks if row.role == "worker"] == [
        str(i) for i in range(NUM - KEEP_PROCESSES + 1, NUM + 1)
    ]
    (dropped,) = run.dropped_ranks
    assert (dropped.role, dropped.num_ranks) == ("worker", NUM - KEEP_PROCESSES)
    assert sum(n for key, n in before.items() if "dropped_ranks" in key) == dropped.num_ranks
    of_each = {row.num_records for row in run.ranks}
    assert of_each == {12}
    assert agent.snapshot().agent.num_records == 12 * (NUM + 1)
    assert num_processes() <= others + KEEP_PROCESSES
    gc.collect()
    assert len(gc.get_objects()) < num_objects + 100  # 200 more have ended
    assert max(len(row.cells) for row in run.steps) <= KEEP_PROCESSES + 1
    end(main)


def test_many_ended_runs(dfx_dir, agent):
    main = live(dfx_dir, run="main", role="trainer", rank=0)
    agent.poll()
    before = agent.snapshot().agent
    counters(agent)  # what is made once
    num_objects = 0
    for i in range(1, NUM + 1):
        end(live(dfx_dir, run=f"run-{i}", rank=0))
        if i % 50 == 0:
            agent.poll()
            now = agent.snapshot().agent
            for field in ("num_records", "num_dropped_runs", "num_reaped_segments"):
                assert getattr(now, field) >= getattr(before, field)
            before = now
        if i == NUM - 200:
            gc.collect()
            num_objects = len(gc.get_objects())
    agent.poll()
    snapshot = agent.snapshot()
    stored = {f"run-{i}" for i in range(NUM - KEEP_RUNS + 1, NUM + 1)}
    assert {row.run for row in snapshot.runs} == {"main"} | stored
    assert snapshot.agent.num_dropped_runs == NUM - KEEP_RUNS
    assert snapshot.agent.num_records == 12 * (NUM + 1)
    assert counters(agent)["dfx_agent_dropped_runs_total"] == NUM - KEEP_RUNS
    del snapshot
    gc.collect()
    assert len(gc.get_objects()) < num_objects + 100
    end(main)


def push_out(folder: Path, agent: Agent, num: int = KEEP_PROCESSES) -> None:
    for i in range(num):
        end(live(folder, rank=1000 + i))
    agent.poll()


def test_the_next_attempt_of_a_dropped_rank_continues_counting(dfx_dir, agent):
    main = live(dfx_dir, role="trainer", rank=0)
    end(live(dfx_dir, rank=7))
    agent.poll()
    first = rank_row(agent, "7")
    push_out(dfx_dir, agent)
    assert "7" not in {row.rank for row in run_row(agent).ranks}
    again = live(dfx_dir, rank=7)
    second = rank_row(agent, "7")
    assert second.attempt == first.attempt + 1
    assert second.tokens_total == {"k": 4.0}
    assert second.counters_total == {"k": 4.0}
    assert second.num_records == 24
    nums = [sum(item.num_collectives for item in row.collectives) for row in (first, second)]
    assert nums == [2, 4]
    assert agent.snapshot().agent.num_records == 12 * (KEEP_PROCESSES + 3)
    end(again)
    end(main)


def test_deaths_and_the_ranks_of_the_world_are_not_pushed_out_by_helpers(dfx_dir, agent):
    main = live(dfx_dir, role="trainer", rank=0, world_size=2)
    end(live(dfx_dir, role="trainer", rank=1, world_size=2))
    dead = live(dfx_dir, rank=5)
    agent.poll()
    fold = agent._runs["r"]
    fold.add(dead_one := fold.processes["worker", "5"], *dead_one.finish("died"))
    push_out(dfx_dir, agent, 2 * KEEP_PROCESSES)
    states = {(row.role, row.rank): row.state for row in run_row(agent).ranks}
    assert states["trainer", "1"] == "exited"
    assert states["worker", "5"] == "died"
    assert len(states) == KEEP_PROCESSES + 3
    end(dead)
    end(main)


def test_what_a_run_is_stays_when_its_first_process_is_dropped(dfx_dir, agent):
    end(live(dfx_dir, rank=0, framework="verl"))
    before = run_row(agent)
    push_out(dfx_dir, agent)
    after = run_row(agent)
    assert "0" not in {row.rank for row in after.ranks}
    assert after.framework == "verl"
    assert after.begin_seconds == before.begin_seconds


def test_the_bit_of_a_dropped_rank_is_given_to_the_next():
    run = Run(3).known()
    gone = run.ranks.pop(1)
    gone.is_living = False
    run.collectives.remove_process(gone)
    run.ranks.append(type(gone)("9"))
    run.known()
    masks = [rank.bit for rank in run.collectives._ranks.values()]
    assert sorted(masks) == [1, 2, 4]
    for rank in run.ranks:
        rank.call(10 * SECOND, 12 * SECOND, 5)
    run.ranks[-1].collectives.clear()
    run.ranks[-1].call(11 * SECOND, 12 * SECOND, 5)
    run.read(times=2)
    (row,) = run.collectives.rows(run.ranks[0])
    assert row.peers_seconds == pytest.approx(1.0)


def test_means_keep_the_values_of_ranks_that_were_dropped():
    store = ScalarStore()
    for step in range(12):
        for rank in range(4):
            store.add("k", str(rank), 0, step, float(step + rank))
    before, recent = store.history("k"), store.latest("k")
    for rank in range(4):
        store.remove_rank(str(rank))
        assert store.history("k") == before
        assert store.latest("k") == recent
    store.add("k", "9", 0, 12, 1.0)
    assert store.history("k")[1][-1] == 1.0


def test_totals_expire():
    recent: BoundedDict[int, int] = BoundedDict()
    for i in range(5000):
        recent.put(i, i)
    assert [recent.pop(i) for i in (0, 4999, 4999)] == [None, 4999, None]
    assert len(recent._values) < 1100
