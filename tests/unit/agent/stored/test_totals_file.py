"""An agent that comes after another one goes on counting where that one was."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_scene import Job, rank_row

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.agent.stored import totals as totals_file
from dfx_agent.node.time.account import Split
from dfx_agent.node.time.totals import CollectiveCounts, StoredTotals, Totals
from dfx_agent.snapshot.document import reason
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import BLOCKING, COLLECTIVE, COUNT, TOKENS


class SmallRing(Job):
    """It holds 256 records."""

    def __init__(self, folder: Path) -> None:
        self.segment = SegmentWriter(
            str(folder), Identity(run="r", role="trainer", rank=0), num_records=256
        )
        self.names: dict[str, int] = {}
        self.span = 0

    def work(self, steps: range) -> None:
        for step in steps:
            self.step(step)
            self.stage("rollout", seconds=0.0002, step=step)
            self.point(TOKENS, "response", 10.0, step)
            self.point(COUNT, "things", 1.0, step)


def agent_of(folder: Path) -> Agent:
    return Agent(Config(str(folder), keep_dead_seconds=600))


def killed(agent: Agent) -> None:
    """All that the kernel does for it; what it kept is what it last wrote."""
    agent._folder.close()


def counted(row) -> tuple:
    return row.num_records, row.num_lost_records, row.tokens_total, row.counters_total


def times(row) -> list[float]:
    split = row.totals
    return [
        split.wall_seconds,
        split.active_seconds,
        split.idle_seconds,
        *split.stage_seconds.values(),
    ]


@pytest.fixture
def watched(dfx_dir, monkeypatch):
    """(folder, job, looker): ``looker`` reads all the time and writes nothing."""
    monkeypatch.setattr(totals_file, "EVERY_SECONDS", 0.0)
    job, looker = SmallRing(dfx_dir), Agent(Config(str(dfx_dir)), reap=False)
    yield dfx_dir, job, looker
    looker._folder.close()


@pytest.mark.parametrize("num_steps_meanwhile", [0, 1, 30])
def test_a_restart_changes_no_count(watched, num_steps_meanwhile):
    folder, job, looker = watched
    first = agent_of(folder)
    for begin in range(1, 400, 40):  # 1,600 records in all: the ring wraps six times
        job.work(range(begin, begin + 40))
        before, _ = rank_row(first, polls=2), rank_row(looker, polls=1)
    killed(first)
    job.work(range(401, 401 + num_steps_meanwhile))
    second = agent_of(folder)
    after = rank_row(second, polls=2)
    whole = rank_row(looker, polls=2)
    assert counted(after) == counted(whole)
    assert after.num_lost_records == 0
    for old, new in zip(times(before), times(after), strict=True):
        assert new >= old
    # what each accounted up to its own last reading differs by the time between the readings
    assert after.totals.active_seconds == pytest.approx(whole.totals.active_seconds, abs=1e-6)
    second.stop()


def test_what_was_overwritten_between_two_agents_is_lost_and_nothing_else(watched):
    folder, job, _ = watched
    first = agent_of(folder)
    job.work(range(1, 101))
    before = rank_row(first, polls=2)
    killed(first)
    job.work(range(101, 301))
    second = agent_of(folder)
    after = rank_row(second, polls=2)
    assert after.num_records == before.num_records + 256
    known = after.num_records + after.num_lost_records + after.num_earlier_records
    assert known == job.segment.num_written()
    assert after.tokens_total["response"] == before.tokens_total["response"] + 640
    second.stop()


def test_three_agents_in_a_row(watched):
    folder, job, looker = watched
    for begin in range(1, 301, 100):
        agent = agent_of(folder)
        for step in range(begin, begin + 100, 25):
            job.work(range(step, step + 25))
            row, whole = rank_row(agent, polls=2), rank_row(looker, polls=2)
        assert counted(row) == counted(whole)
        killed(agent)


def test_another_process_begins_at_zero(watched):
    folder, job, _ = watched
    first = agent_of(folder)
    job.work(range(1, 51))
    rank_row(first, polls=2)
    killed(first)
    Path(job.segment.path).unlink()
    SmallRing(folder).work(range(1, 3))
    second = agent_of(folder)
    assert rank_row(second, polls=2).tokens_total == {"response": 20.0}
    second.stop()


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"format": 9}', '{"format": 1, "processes": {"KEY": {}}}',
                '{"format": 1, "processes": {"KEY": {"position": 1, "until_ns": 0}}}',
                '{"format": 1, "processes": []}']
)  # fmt: skip
def test_a_damaged_file_is_reported(watched, content):
    folder, job, _ = watched
    first = agent_of(folder)
    job.work(range(1, 51))
    rank_row(first, polls=2)
    killed(first)
    path = folder / totals_file.NAME
    (key,) = json.loads(path.read_text())["processes"]
    path.write_text(content.replace("KEY", key))
    second = agent_of(folder)
    assert rank_row(second, polls=2).num_records == 200
    (reported,) = [p.message for p in second.snapshot().agent.problems if p.kind == "totals"]
    assert reported.endswith("counters may go back")
    assert "\n" not in reported
    second.stop()


def test_totals_that_cannot_be_written_are_a_problem_until_they_can(watched):
    folder, job, _ = watched
    agent = agent_of(folder)
    in_the_way = folder / totals_file.NAME
    in_the_way.mkdir()
    job.work(range(1, 3))
    rank_row(agent, polls=2)
    assert [p.kind for p in agent.snapshot().agent.problems] == ["totals"]
    in_the_way.rmdir()
    rank_row(agent, polls=1)
    assert agent.snapshot().agent.problems == ()
    agent.stop()


counts = st.dictionaries(st.text(max_size=5), st.integers(0, 1 << 50).map(float), max_size=3)
lengths = st.integers(0, 1 << 60)


@st.composite
def totals(draw) -> Totals:
    split = Split(draw(lengths), draw(lengths))
    split.stages_ns.update(draw(st.dictionaries(st.text(max_size=5), lengths, max_size=3)))
    pairs = st.tuples(st.text(max_size=5), st.text(max_size=5))
    split.waits_ns.update(draw(st.dictionaries(pairs, lengths, max_size=3)))
    return Totals(split, draw(counts), draw(counts), *(draw(lengths) for _ in range(5)))


@given(totals())
def test_totals_survive_as_text(given_totals):
    entry = totals_file.StoredProcess.from_totals(StoredTotals(7, 9, given_totals))
    assert totals_file.ENTRY.read(totals_file.ENTRY.dumped(entry)).to_totals() == StoredTotals(
        7, 9, given_totals
    )


KEEPS = json.loads(
    totals_file.ENTRY.dumped(totals_file.StoredProcess.from_totals(StoredTotals(7, 9, Totals())))
)


@given(st.sampled_from(sorted(KEEPS["totals"])), st.none() | st.integers(max_value=-1) | st.text())
def test_what_is_no_count_is_refused_in_one_line(name, value):
    strange = {**KEEPS, "totals": {**KEEPS["totals"], name: value}}
    with pytest.raises(ValueError, match=name) as caught:
        totals_file.ENTRY.loaded(strange)
    assert reason(caught.value).startswith(f"totals.{name} ")


def dumped(of: Totals) -> dict:
    return asdict(totals_file.TotalsRow.from_totals(of))


@given(totals(), totals())
def test_what_was_added_can_be_taken_away(one, other):
    known = dumped(one)
    one.merge(other)
    one.merge(other, -1)
    after = dumped(one)
    assert {k: v for k, v in after["stages_ns"].items() if v} == {
        k: v for k, v in known["stages_ns"].items() if v
    }
    assert after["numbers"] == known["numbers"]
    assert after["active_ns"] == known["active_ns"]


def flat(of: Totals) -> dict[tuple, float]:
    """Every number by what it counts."""
    row = dumped(of)
    found = {(key,): row[key] for key in ("active_ns", "idle_ns")}
    found |= {("numbers", at): number for at, number in enumerate(row["numbers"])}
    for key in ("stages_ns", "tokens", "counters"):
        found |= {(key, name): number for name, number in row[key].items()}
    return found | {(kind, stage, "wait"): ns for kind, stage, ns in row["waits_ns"]}


@given(totals(), totals())
def test_every_number_of_the_other_is_added(one, other):
    before, more = flat(one), flat(other)
    one.merge(other)
    keys = before.keys() | more.keys()
    assert flat(one) == {key: before.get(key, 0) + more.get(key, 0) for key in keys}
    one.merge(other, -1)
    assert flat(one) == {key: before.get(key, 0) for key in keys}
    assert set(flat(Totals()).values()) == {0}, "they begin at nothing"


def test_positions_are_stored_before_the_ring_wraps(dfx_dir):
    """Nothing waits for the next five seconds: whoever is killed before has kept enough."""
    job, first = SmallRing(dfx_dir), agent_of(dfx_dir)
    for begin in range(1, 200, 20):  # 80 records in a ring of 256
        job.work(range(begin, begin + 20))
        first.poll()
    before = rank_row(first, polls=1)
    killed(first)
    second = agent_of(dfx_dir)
    after = rank_row(second, polls=2)
    assert counted(after) == counted(before)
    assert after.num_lost_records == 0
    second.stop()


class Talker(SmallRing):
    """One of two ranks, which meet in a collective of each step."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.segment = SegmentWriter(
            str(folder), Identity(run="r", role="trainer", rank=rank), num_records=256
        )
        self.names, self.span = {}, 0

    def meet(self, step: int, begin_ns: int, end_ns: int) -> None:
        self.step(step)
        self.span += 1
        kind, name = COLLECTIVE | BLOCKING, self.name("all_reduce@0")
        self.segment.emit(begin_ns, end_ns, 8.0, step, self.span, 0, 1, kind, name)


def meet(ranks: list[Talker], steps: range) -> None:
    """The first rank waits 20 us for the second one; 10 us are transfer."""
    for step in steps:
        now = time.monotonic_ns()
        for rank, begin_ns in zip(ranks, (now - 30_000, now - 10_000), strict=True):
            rank.meet(step, begin_ns, now)


def collectives(agent: Agent) -> list[tuple]:
    """(number, bytes, blocked seconds) of each rank, after what came was matched."""
    rows = [rank_row(agent, label, polls=3).collectives for label in ("0", "1")]
    return [
        (
            sum(row.num_collectives for row in entry),
            sum(row.num_bytes for row in entry),
            sum(row.peers_seconds + row.transfer_seconds + row.unmatched_seconds for row in entry),
        )
        for entry in rows
    ]


@pytest.mark.parametrize("num_steps_meanwhile", [0, 30])
def test_a_restart_takes_nothing_from_collectives(watched, num_steps_meanwhile):
    folder, _, looker = watched
    ranks, first = [Talker(folder, 0), Talker(folder, 1)], agent_of(folder)
    for begin in range(1, 401, 40):
        meet(ranks, range(begin, begin + 40))
        before = collectives(first)
        collectives(looker)
    assert [row[:2] for row in before] == [(400, 3200.0)] * 2
    killed(first)
    meet(ranks, range(401, 401 + num_steps_meanwhile))
    second = agent_of(folder)
    after, whole = collectives(second), collectives(looker)
    assert [row[:2] for row in after] == [row[:2] for row in whole]
    assert [row[0] for row in after] == [400 + num_steps_meanwhile] * 2
    for old, new, known in zip(before, after, whole, strict=True):
        assert old[2] <= new[2] <= known[2] + 1e-9
        assert new[2] == pytest.approx(known[2], rel=0.02)
    killed(second)
    third = agent_of(folder)
    assert [row[:2] for row in collectives(third)] == [row[:2] for row in whole]
    third.stop()


def test_an_entry_without_collectives_is_read():
    known = {key: value for key, value in KEEPS.items() if key != "collectives"}
    assert totals_file.ENTRY.loaded(known).to_totals() == StoredTotals(7, 9, Totals())


@pytest.mark.parametrize("row", [["0", "", [1]], ["0", "", [-1.0] * 11], ["0", "", ["x"] * 11]])
def test_strange_collectives_are_refused(row):
    with pytest.raises(ValueError, match="collectives"):
        totals_file.ENTRY.loaded({**KEEPS, "collectives": [row]})


def test_counts_of_collectives_survive_as_text():
    counts = CollectiveCounts("0", "rollout", (*range(10), 2.5))
    stored = StoredTotals(7, 9, Totals(), (counts,))
    entry = totals_file.StoredProcess.from_totals(stored)
    assert totals_file.ENTRY.read(totals_file.ENTRY.dumped(entry)).to_totals() == stored
