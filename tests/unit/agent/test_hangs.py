"""Hang and crash verdicts over real segments; only the clock that judges is put forward."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.agent.hangs import HangWatch
from dfx_agent.snapshot import Verdict
from dfx_agent.wire import Identity, SegmentWriter, layout
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    GROUP,
    NO_STEP,
    STAGE,
    STEP,
    WAIT,
)
from dfx_agent.wire.segment import start_ticks

WORLD_SIZE = 4
SECOND = 10**9


class Rank:
    """The guest of one rank in short form; the process behind it is a real one."""

    def __init__(self, folder: Path, rank: int, world_size: int = WORLD_SIZE, **known) -> None:
        fields = {"run": "r", "role": "trainer", **known}
        identity = Identity(rank=rank, world_size=world_size, **fields)
        self.segment = SegmentWriter(str(folder), identity, num_records=1024)
        self.path = Path(self.segment.path)
        self.names: dict[str, int] = {}
        self.span = 0
        self.open_slots: list[tuple[int, int, int, int]] = []
        self.owner = subprocess.Popen(["sleep", "300"])
        fields = list(layout.PREAMBLE.unpack(self.path.read_bytes()[: layout.PREAMBLE.size]))
        fields[13:15] = self.owner.pid, start_ticks(self.owner.pid)
        with self.path.open("r+b") as file:
            file.write(layout.PREAMBLE.pack(*fields))

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = self.segment.add_name(text)
        return self.names[text]

    def step(self, step: int) -> None:
        now = time.monotonic_ns()
        self.segment.emit(now, now, 0.0, step, 0, 0, 0, STEP, 0)

    def ended(self, stage: str, seconds: float = 0.0) -> None:
        """A stage that took this long and ends now."""
        self.span += 1
        now = time.monotonic_ns()
        begin = now - int(seconds * SECOND) - 1
        self.segment.emit(begin, now, 0.0, 0, self.span, 0, 1, STAGE, self.name(stage))

    def enters(self, name: str, kind: int = STAGE, sequence: int = NO_STEP) -> None:
        self.span += 1
        parent = self.open_slots[-1][1] if self.open_slots else 0
        now, name_id = time.monotonic_ns(), self.name(name)
        slot = self.segment.inflight.enter(now, sequence, self.span, parent, 1, kind, name_id)
        self.open_slots.append((slot, self.span, now, kind))

    def waits(self, name: str, sequence: int = NO_STEP) -> None:
        self.enters(name, COLLECTIVE | BLOCKING, sequence)

    def leaves(self) -> None:
        self.segment.inflight.leave(self.open_slots.pop()[0])

    def took_part(self, name: str, sequence: int, seconds: float = 0.0) -> None:
        self.span += 1
        now = time.monotonic_ns()
        begin = now - int(seconds * SECOND) - 1
        kind = COLLECTIVE | BLOCKING
        self.segment.emit(begin, now, 8.0, sequence, self.span, 0, 1, kind, self.name(name))

    def reports_group(self, group: str, num_enqueued: int) -> None:
        now = time.monotonic_ns()
        self.segment.emit(now, now, -1.0, num_enqueued, 0, 0, 0, GROUP, self.name(group))

    def writes_stacks(self, *functions: str) -> None:
        """As the guest does, some time after it moved."""
        at = time.monotonic_ns() + SECOND
        calls = "\n".join(f'  File "train.py", line 7 in {name}' for name in reversed(functions))
        text = (
            f"dfx-stacks 1 {self.owner.pid} {at} 0xaa\nname 0xaa 1 MainThread\n\n"
            f"Thread 0x00000000000000aa (most recent call first):\n{calls}\n"
        )
        self.path.with_suffix(".stacks").write_text(text)

    def dies(self) -> None:
        self.owner.kill()
        self.owner.wait()


class Scene:
    """A few ranks, an agent that reads them, and the watch that judges."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = Agent(Config(str(folder)), reap=False)
        self.watch = HangWatch()
        self.ranks: list[Rank] = []

    def add(self, num_ranks: int, **known) -> list[Rank]:
        added = [Rank(self.folder, rank, **known) for rank in range(num_ranks)]
        self.ranks += added
        return added

    def warm_up(self, stage: str = "backward", num_steps: int = 4) -> list[Rank]:
        """Four ranks that have passed a few steps, each with a stage and a collective."""
        ranks = self.add(WORLD_SIZE)
        for step in range(1, num_steps + 1):
            for rank in ranks:
                rank.step(step)
                rank.ended(stage)
                rank.took_part("all_reduce@0", step)
        self.look()
        return ranks

    def look(self, seconds_later: float = 0.0, kind: str = "hang") -> Verdict:
        """The verdict of this kind as it is that much later."""
        for _ in range(2):
            self.agent.poll()
            now = time.monotonic_ns() + int(seconds_later * SECOND)
            verdicts = self.watch.observe(self.agent._runs["r"].processes, now)
        (verdict,) = (v for v in verdicts if v.kind == kind and v.role == "trainer")
        return verdict


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    scene = Scene(dfx_dir)
    yield scene
    for rank in scene.ranks:
        os.kill(rank.owner.pid, signal.SIGCONT) if rank.owner.poll() is None else None
        rank.dies()


def hold_in(ranks: list[Rank], operation: str, sequence: int) -> None:
    for rank in ranks:
        rank.waits(operation, sequence)


# a rank that does not arrive


def test_a_rank_stuck_in_a_short_stage_is_named_within_14_seconds(scene):
    ranks = scene.warm_up()
    ranks[2].enters("actor_update")
    ranks[2].enters("backward")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    assert scene.look(9).state == "clear"
    verdict = scene.look(14)
    assert (verdict.state, verdict.ranks, verdict.stage) == ("found", ("2",), "backward")
    assert verdict.cause == "stuck"
    assert verdict.step == 4
    assert "ranks 0, 1, 3 wait in all_reduce@0 #5" in verdict.summary
    assert any("group 0 is #4, the others are in #5" in line for line in verdict.evidence)
    assert verdict.since_seconds == pytest.approx(time.time(), abs=5)


def test_it_is_over_when_the_rank_arrives(scene):
    ranks = scene.warm_up()
    ranks[2].enters("backward")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    assert scene.look(14).state == "found"
    ranks[2].leaves()
    for rank in ranks:
        if rank.open_slots:
            rank.leaves()
        rank.took_part("all_reduce@0", 5)
    assert scene.look(0).state == "clear"


@pytest.mark.parametrize("stage", ["rollout", "validation", "checkpoint", "save_hf", "eval_math"])
def test_a_long_stage_on_one_rank_is_no_hang_for_ten_minutes(scene, stage):
    ranks = scene.warm_up()
    ranks[0].enters(stage)
    ranks[0].enters("backward")
    hold_in(ranks[1:], "barrier@0", 5)
    verdict = scene.look(590)
    assert verdict.state == "clear"
    assert "rank 0" in verdict.summary
    assert scene.look(601).ranks == ("0",)


@pytest.mark.parametrize("stage", ["rollout", "validation", "checkpoint"])
def test_a_long_stage_on_all_ranks_is_no_hang_at_all(scene, stage):
    for rank in scene.warm_up(stage):
        rank.enters(stage)
    assert scene.look(590).state == "clear"


def test_the_limit_grows_with_what_a_stage_takes(scene):
    ranks = scene.add(WORLD_SIZE)
    for step in (1, 2, 3):
        for rank in ranks:
            rank.step(step)
            rank.ended("values", 20.0 if step == 2 else 7.0)
    ranks[3].enters("values")
    hold_in(ranks[:3], "all_reduce@0", 1)
    assert scene.look(39).state == "clear"
    assert scene.look(41).ranks == ("3",)


def test_the_first_steps_may_take_five_minutes(scene):
    ranks = scene.add(WORLD_SIZE)
    for rank in ranks:
        rank.step(1)
    ranks[1].enters("forward")
    hold_in([ranks[0], *ranks[2:]], "all_reduce@0", 1)
    assert scene.look(290).state == "clear"
    assert scene.look(301).ranks == ("1",)


def test_a_stage_that_was_never_seen_may_take_five_minutes_too(scene):
    ranks = scene.warm_up()
    ranks[1].enters("export")
    hold_in([ranks[0], *ranks[2:]], "all_reduce@0", 5)
    assert scene.look(290).state == "clear"
    assert scene.look(301).ranks == ("1",)


def test_a_rank_outside_every_stage_has_a_minute_without_stacks_and_ten_seconds_with_them(scene):
    ranks = scene.warm_up()
    hold_in(ranks[1:], "all_reduce@0", 5)
    assert scene.look(50).state == "clear"
    assert scene.look(61).ranks == ("0",)
    ranks[0].writes_stacks("main", "train", "next_batch")
    verdict = Scene(scene.folder).look(12)
    assert (verdict.ranks, verdict.stage) == (("0",), "idle")
    assert any("next_batch (train.py:7)" in line for line in verdict.evidence)


def test_stacks_that_show_a_checkpoint_are_believed(scene):
    ranks = scene.warm_up()
    hold_in(ranks[1:], "all_reduce@0", 5)
    ranks[0].writes_stacks("main", "train", "save_checkpoint", "write")
    assert scene.look(590).state == "clear"
    assert scene.look(601).ranks == ("0",)


def test_a_stopped_process_is_named_at_once_even_in_a_long_stage(scene):
    ranks = scene.warm_up()
    ranks[2].enters("rollout")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    os.kill(ranks[2].owner.pid, signal.SIGSTOP)
    verdict = scene.look(11)
    assert (verdict.ranks, verdict.cause, verdict.stage) == (("2",), "stopped", "rollout")
    assert any(f"kill -CONT {ranks[2].owner.pid}" in line for line in verdict.evidence)


def test_a_process_stopped_inside_the_collective_is_named_too(scene):
    ranks = scene.warm_up()
    hold_in(ranks, "all_reduce@0", 5)
    os.kill(ranks[1].owner.pid, signal.SIGSTOP)
    verdict = scene.look(11)
    assert (verdict.ranks, verdict.cause) == (("1",), "stopped")


def test_a_rank_that_ended_while_the_others_wait_is_named(scene):
    ranks = scene.warm_up()
    ranks[3].segment.finish()
    hold_in(ranks[:3], "all_reduce@0", 5)
    verdict = scene.look(11)
    assert (verdict.ranks, verdict.cause) == (("3",), "left")


def test_waits_that_the_job_marks_itself_are_enough(scene):
    ranks = scene.warm_up()
    for rank in ranks[1:]:
        rank.enters("weight_sync")
        rank.enters("barrier", WAIT)
    ranks[0].enters("backward")
    assert scene.look(14).ranks == ("0",)


def test_waits_for_other_roles_are_none_of_our_business(scene):
    ranks = scene.warm_up()
    for rank in ranks[1:]:
        rank.enters("queue", WAIT)
    ranks[0].enters("backward")
    assert scene.look(100).state == "clear"


def test_ranks_that_wait_on_a_device_are_known_by_the_number_that_they_have_issued(scene):
    ranks = scene.warm_up()
    for rank in ranks:
        rank.enters("backward")
        rank.reports_group("0", 4 if rank is ranks[1] else 6)
    verdict = scene.look(14)
    assert (verdict.ranks, verdict.stage) == (("1",), "backward")
    assert "#6" in verdict.summary


def test_a_rank_that_works_beside_a_wait_in_another_thread_is_not_blocked(scene):
    ranks = scene.warm_up("rollout")
    ranks[0].waits("broadcast@7", 1)
    ranks[0].open_slots.clear()
    ranks[0].enters("rollout")
    hold_in(ranks[1:], "all_reduce@0", 5)
    assert scene.look(60).state == "clear"


# nobody is missing


def test_different_operations_under_one_number_are_a_mismatch(scene):
    ranks = scene.warm_up()
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    ranks[2].waits("broadcast@0", 5)
    verdict = scene.look(11)
    assert (verdict.cause, verdict.ranks) == ("mismatched collectives", ("2",))
    assert "all_reduce@0 #5" in verdict.summary
    assert "broadcast@0 #5" in verdict.summary


def test_two_groups_waiting_for_each_other_are_a_mismatch(scene):
    ranks = scene.warm_up()
    for rank in ranks:
        rank.took_part("all_gather@1", 1)
        rank.took_part("all_gather@2", 1)
    scene.look()
    hold_in(ranks[:2], "all_gather@1", 2)
    hold_in(ranks[2:], "all_gather@2", 2)
    verdict = scene.look(11)
    assert (verdict.cause, verdict.ranks) == ("mismatched collectives", ("0", "1", "2", "3"))


def test_a_rank_that_left_out_a_backward_is_a_mismatch(scene):
    ranks = scene.warm_up()
    for rank in ranks[:3]:
        rank.reports_group("0", 7)
    hold_in(ranks[:3], "ddp_gradients@0", 8)
    ranks[3].waits("all_reduce@0", 5)
    verdict = scene.look(11)
    assert (verdict.cause, verdict.ranks) == ("mismatched collectives", ("3",))


def test_everybody_in_one_collective_for_30_seconds_is_a_hang_without_a_culprit(scene):
    ranks = scene.warm_up()
    hold_in(ranks, "all_reduce@0", 5)
    assert scene.look(29).state == "clear"
    verdict = scene.look(31)
    assert (verdict.state, verdict.cause) == ("found", "collective does not finish")
    assert verdict.ranks == ()


def test_a_collective_that_always_takes_long_may_take_five_times_as_long(scene):
    ranks = scene.warm_up()
    for sequence in (5, 6, 7, 8, 9):
        for rank in ranks:
            rank.took_part("broadcast@0", sequence, seconds=9.0)
    scene.look()
    hold_in(ranks, "broadcast@0", 10)
    assert scene.look(44).state == "clear"
    assert scene.look(46).cause == "collective does not finish"


def test_ranks_on_other_nodes_leave_it_open(scene):
    ranks = scene.add(2, world_size=8)
    for step in (1, 2, 3):
        for rank in ranks:
            rank.step(step)
            rank.took_part("all_reduce@0", step)
    hold_in(ranks, "all_reduce@0", 4)
    verdict = scene.look(60)
    assert verdict.state == "insufficient evidence"
    assert "6 of its ranks are not seen" in verdict.summary


def test_a_run_in_which_nothing_moves_has_no_progress(scene):
    scene.warm_up()
    assert scene.look(119).state == "clear"
    verdict = scene.look(121)
    assert (verdict.state, verdict.cause, verdict.stage) == ("found", "no progress", "idle")


# deaths


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


# no hang


def test_a_sound_run_is_clear_at_every_reading(scene):
    ranks = scene.add(WORLD_SIZE)
    for step in range(1, 30):
        for rank in ranks:
            rank.step(step)
            rank.ended("backward", 0.3)
            rank.took_part("all_reduce@0", step)
        ranks[step % WORLD_SIZE].enters("checkpoint" if step % 5 else "backward")
        assert scene.look(5).state == "clear"
        ranks[step % WORLD_SIZE].leaves()


def test_roles_are_judged_apart(scene):
    scene.warm_up()
    scene.add(1, role="driver", world_size=-1)
    scene.agent.poll()
    verdicts = scene.watch.observe(scene.agent._runs["r"].processes, time.monotonic_ns())
    assert {(v.role, v.kind) for v in verdicts} == {
        (role, kind) for role in ("trainer", "driver") for kind in ("hang", "crash")
    }


def test_a_watch_that_comes_later_sees_the_same(scene):
    ranks = scene.warm_up()
    ranks[2].enters("backward")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    late = Scene(scene.folder)
    assert late.look(9).state == "clear"
    assert late.look(14).ranks == ("2",)
