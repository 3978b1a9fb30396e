"""The agent over real segments: folds, restarts, ends, damage; other segments are always read."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from job_scene import Job, rank_row, run_row, write_at

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.commands.diagnose import diagnosis_text
from dfx_agent.commands.ps.observed import Observed
from dfx_agent.wire import Identity, layout
from dfx_agent.wire.records import (
    COUNTED,
    FROM_ATTACH,
    POLICY_VERSION,
    QUEUE,
    SCALAR,
    STAGE,
    STEP,
    TOKENS,
    WAIT,
)


@pytest.fixture
def agent(dfx_dir) -> Iterator[Agent]:
    agent = Agent(Config(str(dfx_dir), keep_dead_seconds=0.5))
    yield agent
    agent._folder.close()


def test_a_step_closes_when_all_ranks_have_passed_it(dfx_dir, agent):
    jobs = [Job(dfx_dir, rank) for rank in range(3)]
    for step in (1, 2):
        for job in jobs:
            job.step(step)
            job.stage("rollout")
            job.point(TOKENS, "response", 10.0, step)
    assert [row.step for row in run_row(agent, polls=3).steps] == [1]
    jobs[0].step(3)
    jobs[1].step(3)
    assert [row.step for row in run_row(agent, polls=3).steps] == [1]
    jobs[2].step(3)
    rows = run_row(agent, polls=3).steps
    assert [row.step for row in rows] == [1, 2]
    for row in rows:
        assert [cell.rank for cell in row.cells] == ["0", "1", "2"]
        assert row.missing_ranks == ()
        assert all(cell.tokens == {"response": 10.0} for cell in row.cells)
        for cell in row.cells:
            split = cell.split
            waits = sum(sum(kinds.values()) for kinds in split.wait_seconds.values())
            whole = split.active_seconds + waits + split.idle_seconds
            assert split.wall_seconds == pytest.approx(whole, abs=1e-9)
            assert split.stage_seconds["rollout"] >= 0.002


def test_tokens_of_forward_passes_count_if_the_job_reports_none(dfx_dir, agent):
    plain, reported = Job(dfx_dir, 0), Job(dfx_dir, 1)
    for step in (1, 2, 3):
        for job in (plain, reported):
            job.step(step)
            for _ in range(2):
                job.point(TOKENS, "forward", 64.0, step)
        reported.point(TOKENS, "response", 10.0, step)
    ranks = {row.rank: row for row in run_row(agent, polls=3).ranks}
    assert ranks["0"].tokens_total == {"forward": 384.0}
    assert ranks["1"].tokens_total == {"response": 30.0}
    cells = run_row(agent).steps[-1].cells
    assert [cell.tokens for cell in cells] == [{"forward": 128.0}, {"response": 10.0}]


def test_a_superseded_step_names_the_ranks_that_never_passed_it_and_a_late_cell_finds_its_row(
    dfx_dir, agent
):
    fast, stuck = Job(dfx_dir, 0), Job(dfx_dir, 1)
    fast.step(1)
    stuck.step(1)
    run_row(agent)
    for step in (2, 3):
        fast.step(step)
        fast.stage("rollout")
    (row,) = run_row(agent, polls=3).steps
    assert (row.step, row.missing_ranks, [c.rank for c in row.cells]) == (1, ("1",), ["0"])
    stuck.step(2)
    row = run_row(agent, polls=3).steps[0]
    assert (row.step, row.missing_ranks, [c.rank for c in row.cells]) == (1, (), ["0", "1"])


def test_counters_stay_monotonic_over_a_restart_and_replayed_steps_replace(dfx_dir, agent):
    first = Job(dfx_dir).given_to_a_child()
    for step in (1, 2, 3):
        first.step(step)
        first.stage("rollout")
        first.point(TOKENS, "response", 100.0, step)
        first.point(SCALAR, "actor/kl", float(step), step)
    before = rank_row(agent)
    assert before.tokens_total == {"response": 300.0}
    first.die()
    died = rank_row(agent)
    assert died.state == "died"
    second = Job(dfx_dir)
    for step in (2, 3, 4):
        second.step(step)
        second.stage("rollout")
        second.point(TOKENS, "response", 10.0, step)
        second.point(SCALAR, "actor/kl", 10.0 * step, step)
    after = rank_row(agent)
    assert (after.state, after.attempt) == ("live", 1)
    assert after.tokens_total == {"response": 330.0}
    assert after.totals.wall_seconds >= died.totals.wall_seconds >= before.totals.wall_seconds
    assert after.num_records == before.num_records + 12
    row = run_row(agent)
    steps = [step.step for step in row.steps]
    assert steps == sorted(set(steps))
    (history,) = agent.scalar_history("r", ["actor/kl"])
    assert history.steps == (1, 2, 3, 4)
    assert history.values == (1.0, 20.0, 30.0, 40.0)


def test_a_value_is_shown_in_the_next_snapshot_and_an_old_one_stays(dfx_dir, agent):
    job = Job(dfx_dir)
    for step, value in ((1, 0.5), (2, 0.75)):
        job.point(SCALAR, "actor/kl", value, step)
        for _ in range(2):  # the second time nothing has come
            row = run_row(agent)
            found = [(s.key, s.step, s.moments.mean) for s in (*row.scalars, *row.ranks[0].scalars)]
            assert found == [("actor/kl", step, value)] * 2


def test_two_live_processes_with_one_rank_are_both_shown(dfx_dir, agent):
    jobs = [Job(dfx_dir, 0), Job(dfx_dir, 0).given_to_a_child(), Job(dfx_dir, -1)]
    jobs[0].step(3)
    jobs[1].step(4)
    rows = {row.rank: row.step for row in run_row(agent).ranks}
    second = jobs[1].owner.pid
    jobs[1].die()
    assert rows == {"0": 3, f"0.{second}": 4, f"p{os.getpid()}": None}


def test_a_span_that_began_just_before_a_reading_and_was_not_seen_is_not_late(dfx_dir, agent):
    """The guest takes the time, then the in-flight slot: a reading may come in between."""
    job = Job(dfx_dir)
    job.step(1)
    run_row(agent)
    begin = time.monotonic_ns()
    time.sleep(0.01)
    agent.poll()
    end = time.monotonic_ns()
    job.segment.emit(begin, end, 0.0, 1, 1, 0, 1, STAGE, job.name("rollout"))
    row = rank_row(agent, polls=3)
    assert row.num_late_records == 0
    assert row.totals.stage_seconds["rollout"] == (end - begin) / 1e9


def test_values_of_ranks_are_merged(dfx_dir, agent):
    for rank in range(4):
        Job(dfx_dir, rank).point(SCALAR, "actor/kl", float(rank), 7)
    (scalar,) = run_row(agent).scalars
    assert (scalar.key, scalar.step) == ("actor/kl", 7)
    moments = scalar.moments
    assert (moments.count, moments.sum, moments.min, moments.max) == (4, 6.0, 0.0, 3.0)


def test_keys_have_the_words_of_the_framework_that_is_named_at_any_time(dfx_dir, agent):
    """The segment is there before the framework is imported; what it then reports is its own."""
    job = Job(dfx_dir, framework="")
    job.step(1)
    assert run_row(agent).framework == ""
    job.segment.write_identity(Identity(run="r", role="trainer", rank=0, framework="trl"))
    job.point(SCALAR, "reward", 0.5, 1)
    (scalar,) = rank_row(agent).scalars
    assert scalar.metric == "dfx_reward"
    for step in (2, 3):
        job.step(step)
        run_row(agent)
    assert run_row(agent).signals is not None


def test_a_process_that_names_no_framework_speaks_as_its_run_does(dfx_dir, agent):
    Job(dfx_dir, 0, framework="trl").point(SCALAR, "reward", 0.5, 1)
    Job(dfx_dir, 1, framework="").point(SCALAR, "reward", 0.25, 1)
    metrics = {row.rank: [scalar.metric for scalar in row.scalars] for row in run_row(agent).ranks}
    assert metrics == {"0": ["dfx_reward"], "1": ["dfx_reward"]}


def test_counters_never_go_back_for_negative_counts(dfx_dir, agent):
    job = Job(dfx_dir)
    job.point(TOKENS, "response", 100.0, 1)
    assert rank_row(agent).tokens_total == {"response": 100.0}
    job.point(TOKENS, "response", -50.0, 1)
    assert rank_row(agent).tokens_total == {"response": 100.0}


def test_an_identity_that_init_completes_later_moves_the_process(dfx_dir, agent):
    """Preloaded, a process is seen with what its environment says; then its own code calls init."""
    job = Job(dfx_dir, -1, run="script-1", role="driver")
    job.step(1)
    run_row(agent, "script-1")
    job.segment.write_identity(Identity(run="r", role="trainer", rank=3, framework="verl"))
    job.step(2)
    rows = {(run.run, row.role, row.rank) for run in (run_row(agent),) for row in run.ranks}
    assert rows == {("r", "trainer", "3")}
    assert "script-1" not in {run.run for run in agent.snapshot().runs}


def test_an_orderly_end_closes_the_last_step_and_removes_the_file(dfx_dir, agent):
    job = Job(dfx_dir)
    job.step(1)
    job.stage("rollout")
    run_row(agent)
    job.segment.finish()
    row = run_row(agent, polls=3)
    assert row.ranks[0].state == "exited"
    assert [step.step for step in row.steps] == [1]
    assert not job.path.exists()
    assert agent.snapshot().agent.num_reaped_segments == 1


def test_a_process_that_was_seen_only_after_its_end_is_complete(dfx_dir, agent):
    job = Job(dfx_dir)
    for step in range(1, 6):
        job.step(step)
        job.stage("rollout")
    job.segment.finish()
    row = run_row(agent, polls=1)
    assert [step.step for step in row.steps] == [1, 2, 3, 4, 5]
    assert row.ranks[0].num_records == 10
    assert row.ranks[0].num_lost_records == 0


def test_a_death_with_torn_records_is_read_to_the_end(dfx_dir, agent):
    job = Job(dfx_dir).given_to_a_child()
    for _ in range(3):
        for _ in range(200):
            job.point(SCALAR, "x", 1.0, 1)
    for torn in (100, 300, 500):
        write_at(job.path, layout.RING_OFFSET + torn * 64, bytes(64))
    job.die()
    row = run_row(agent, polls=1).ranks[0]
    assert (row.num_records, row.num_lost_records) == (597, 3)


def test_a_death_on_a_weakly_ordered_processor_is_read_to_the_end(dfx_dir, agent, monkeypatch):
    from dfx_agent.wire.ring import RingReader

    monkeypatch.setitem(RingReader.__init__.__kwdefaults__, "weakly_ordered", True)  # noqa: FBT003
    job = Job(dfx_dir)
    for step in range(1, 6):
        job.step(step)
    run_row(agent, polls=2)
    job.step(6)
    job.segment.finish()
    row = run_row(agent, polls=1).ranks[0]
    assert (row.num_records, row.num_lost_records) == (6, 0)


def test_a_dead_process_is_shown_for_a_while_and_then_removed(dfx_dir, agent):
    job = Job(dfx_dir).given_to_a_child()
    job.step(4)
    slot = job.segment.inflight.enter(
        time.monotonic_ns(), 4, 9, 0, 1, STAGE, job.name("actor_update")
    )
    assert slot
    run_row(agent)
    job.die()
    row = run_row(agent)
    assert row.ranks[0].state == "died"
    assert [span.name for span in row.ranks[0].inflight] == ["actor_update"]
    assert job.path.exists()
    time.sleep(0.6)
    row = run_row(agent)
    assert not job.path.exists()
    assert row.ranks[0].state == "died"


def test_an_agent_that_starts_in_mid_run_continues(dfx_dir):
    agent = Agent(Config(str(dfx_dir)))
    job = Job(dfx_dir)
    for step in (1, 2, 3):
        job.step(step)
        job.stage("rollout")
    run_row(agent)
    agent._folder.close()
    again = Agent(Config(str(dfx_dir)))
    job.step(4)
    row = run_row(again)
    again._folder.close()
    assert row.ranks[0].step == 4
    assert [step.step for step in row.steps] == [1, 2, 3]
    assert row.ranks[0].num_lost_records == 0


def test_an_agent_that_starts_after_the_ring_was_overwritten_begins_with_what_is_left(dfx_dir):
    job = Job(dfx_dir)
    job.stage("early", seconds=0.3)
    for n in range(6000):
        job.point(SCALAR, "x", float(n), 1)
    job.stage("late")
    agent = Agent(Config(str(dfx_dir)))
    row = rank_row(agent)
    agent._folder.close()
    assert row.num_records + row.num_earlier_records == 6002
    assert row.num_lost_records == 0
    assert row.totals.wall_seconds < 0.3, "time that nobody knows about is not idle"
    assert set(row.totals.stage_seconds) == {"late"}


DAMAGE = [
    ("names used", layout.NAMES_USED_OFFSET, bytes(8)),
    ("names used", layout.NAMES_USED_OFFSET, b"\xff" * 8),
    ("identity", layout.IDENTITY_OFFSET, b"\xff" * layout.IDENTITY.size),
    ("clocks", layout.CLOCK_OFFSET, b"\xff" * 512),
    ("clocks", layout.CLOCK_OFFSET, bytes(512)),
    ("in-flight", layout.INFLIGHT_OFFSET, b"\xff" * 16384),
    ("names", layout.NAMES_OFFSET, b"\xff" * 4096),
    ("ring", layout.RING_OFFSET, b"\xff" * 4096),
    ("ring", layout.RING_OFFSET, b"\x01" * 64 * 4096),
]


@pytest.mark.parametrize(("what", "at", "data"), DAMAGE, ids=lambda v: str(v)[:20])
@pytest.mark.parametrize("when", ["before", "while"])
def test_damage_in_one_segment_does_not_hide_another(dfx_dir, agent, what, at, data, when):
    bad = Job(dfx_dir, run="bad")
    for step in range(1, 30):
        bad.step(step)
        bad.stage("rollout", seconds=0.0)
    good = Job(dfx_dir, run="good")
    if when == "while":
        agent.poll()
    bad.stage("new", seconds=0.0)
    write_at(bad.path, at, data)
    bad.segment.inflight.enter(1, 1, 77, 0, 1, STAGE, 60000)
    for step in range(1, 5):
        good.step(step)
        good.stage("rollout")
        assert rank_row(agent, run="good").step in (step, step - 1, None)
    assert rank_row(agent, run="good").step == 4
    assert agent._num_errors == 0


def odd_records(job: Job) -> Iterator[tuple]:
    now, far = time.monotonic_ns(), 2**64 - 1
    name = job.name("x")
    nan, inf = float("nan"), float("inf")
    for kind in (0, STAGE, WAIT, SCALAR, TOKENS, QUEUE, POLICY_VERSION, STEP, 99, 0x8001, 0xFFFF):
        for begin, end in ((0, far), (far, 0), (far, far), (0, 0), (0, now), (now - 5, now)):
            for value in (nan, inf, -inf, 1e308, -1.0):
                for step in (-(2**63), -5, 2**63 - 1):
                    yield begin, end, value, step, 0, 0, 0, kind, name
        yield now - 100, now, 0.0, 1, 5, 6, 1, kind, 0xFFFF
        yield now - 100, now, 0.0, 1, 6, 5, 1, kind, 0
        yield now - 100, now, 0.0, 1, 7, 7, 1, kind, name


def test_odd_values_in_records_never_stop_the_agent(dfx_dir, agent):
    job, good = Job(dfx_dir, run="bad"), Job(dfx_dir, run="good")
    agent.poll()
    records = [r for r in odd_records(job) if not (r[4] == 0 and r[7] in (STAGE, WAIT))]
    random.Random(1).shuffle(records)
    for n, record in enumerate(records):
        job.segment.emit(*record)
        if n % 300 == 0:
            job.segment.inflight.enter(record[0], record[3], n + 1, n + 2, 1, record[7], 0xFFFF)
            agent.poll()
            agent.snapshot()
            agent.timeline("bad", 8)
    good.step(9)
    assert rank_row(agent, run="good").step == 9
    bad = rank_row(agent, run="bad")
    assert bad.totals.wall_seconds < 60
    agent.scalar_history("bad", ["x"])


NUMBER_0 = """
import sys, time
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.wire import Identity, SegmentWriter
segment = SegmentWriter(sys.argv[1], Identity(run="r"), num_records=64)
name = segment.add_name("queue")
agent = Agent(Config(sys.argv[1]))
agent.poll()
begin = time.monotonic_ns()
time.sleep(0.01)
segment.emit(begin, begin + 9000, 0.0, 1, 0, 0, 1, 2, name)
segment.emit(begin + 10, begin + 900, 0.0, 1, 1, 0, 1, 2, name)
for _ in range(3):
    agent.poll()
print("alive")
"""


def test_a_span_numbered_0_does_not_hang_the_agent(dfx_dir):
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", NUMBER_0, str(dfx_dir)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "alive\n", done.stderr


def test_random_damage_in_every_poll_is_survived_in_bounded_time(dfx_dir, agent):
    rng = random.Random(7)
    good = Job(dfx_dir, run="good")
    bad = [Job(dfx_dir, rank, run="bad") for rank in range(4)]
    size = layout.RING_OFFSET + 64 * 300
    longest = 0.0
    for trial in range(120):
        for job in bad:
            job.stage("rollout", seconds=0.0, step=trial)
            at = rng.choice([rng.randrange(layout.HEADER_BYTES), rng.randrange(size)])
            write_at(job.path, at, rng.randbytes(rng.choice([1, 1, 8, 64])))
        good.step(trial)
        begin = time.monotonic()
        agent.poll()
        agent.snapshot()
        longest = max(longest, time.monotonic() - begin)
    assert rank_row(agent, run="good").step == 119
    assert longest < 5


def test_truncation_of_a_followed_segment_is_survived(dfx_dir, agent):
    good, bad = Job(dfx_dir, run="good"), Job(dfx_dir, run="bad")
    bad.stage("rollout")
    agent.poll()
    for size in (layout.RING_OFFSET + 100, layout.NAMES_OFFSET + 1, 600, 130, 1, 0):
        os.truncate(bad.path, size)
        good.step(size)
        assert rank_row(agent, run="good").step == size
    assert agent.snapshot().agent.num_exporter_errors == 0


@pytest.mark.parametrize("num_detached", [1, 2])
def test_a_detached_rank_has_neither_crashed_nor_ended(dfx_dir, agent, num_detached):
    jobs = [Job(dfx_dir, rank) for rank in (0, 1)]
    for step in (1, 2, 3):
        for job in jobs:
            job.step(step)
    run_row(agent, polls=3)
    for job in jobs[:num_detached]:
        job.segment.finish(layout.STATE_DETACHED)
    run = run_row(agent)
    assert [rank.state for rank in run.ranks].count("detached") == num_detached
    assert all(verdict.state != "found" for verdict in run.verdicts)
    text = " ".join([run.ending, run.standing.reason, *(v.summary for v in run.verdicts)])
    assert not re.search("shutting down|ended|crashed|died at|lost", text), text
    assert ("The job was detached at " in run.ending) == (num_detached == 2)


@pytest.mark.parametrize("kind", [STEP, STEP | FROM_ATTACH])
def test_steps_that_count_from_an_attach_are_called_so_once(dfx_dir, agent, kind):
    for rank in (0, 1):
        Job(dfx_dir, rank).point(kind, "", 0.0, 2)
    run_row(agent)
    seen = Observed("segments", str(dfx_dir), agent.snapshot())
    result = diagnosis_text.text(seen, None).count("Steps are counted from the moment of attaching")
    assert result == (kind != STEP)


def test_a_process_that_cannot_be_asked_is_not_called_live(dfx_dir, agent):
    for rank in range(4):
        Job(dfx_dir, rank)
    run = run_row(agent)
    far = tuple(replace(row, state="unknown") if row.rank in "12" else row for row in run.ranks)
    snapshot = replace(agent.snapshot(), runs=(replace(run, ranks=far),))
    text = diagnosis_text.text(Observed("segments", str(dfx_dir), snapshot), None)
    assert "run r: 2 of 4 processes live, the state of 2 is unknown, from segments" in text


@pytest.mark.parametrize("kind", [STEP, STEP | COUNTED])
def test_a_run_of_three_steps_ends_after_step_three(dfx_dir, agent, kind):
    """A job says when a step begins; of the guest's own count the newest has but begun."""
    jobs = [Job(dfx_dir, rank) for rank in (0, 1)]
    for job in jobs:
        for step in range(1, 4 if kind == STEP else 5):
            job.point(kind, "", 0.0, step)
            job.stage("backward")
    run_row(agent)
    for job in jobs:
        job.segment.finish()
    run = run_row(agent)
    assert run.ending.endswith(", after step 3.")
    assert [row.step for row in run.steps] == [1, 2, 3]
