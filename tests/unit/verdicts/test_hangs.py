"""Who is said to hang, who is not, and what the sentence says."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
from hang_scene import SECOND, WORLD_SIZE, Scene, ending, hold_in, staged

from dfx_agent.node import kernel_look as progress
from dfx_agent.node import track as tracking
from dfx_agent.node.track import Track
from dfx_agent.wire.records import WAIT


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


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
    assert "Ranks 0, 1, 3 wait in all_reduce for" in verdict.summary
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


def test_the_first_steps_may_take_five_minutes(scene):
    ranks = scene.add(WORLD_SIZE)
    for rank in ranks:
        rank.step(1)
    ranks[1].enters("forward")
    hold_in([ranks[0], *ranks[2:]], "all_reduce@0", 1)
    assert scene.look(290).state == "insufficient evidence"
    assert scene.look(301).ranks == ("1",)


def test_a_job_that_hung_before_we_came_is_found_after_a_minute(scene, monkeypatch):
    for rank in scene.add(WORLD_SIZE):
        rank.reports_group("0", 41 if rank is scene.ranks[1] else 42)
        rank.writes_stacks("main", "load_batch" if rank is scene.ranks[1] else "backward")
    early = scene.look(70)
    assert early.state == "insufficient evidence"  # it may be compiling
    assert any("load_batch" in line for line in early.evidence)
    monkeypatch.setattr(Track, "seconds_before_guest", 1000.0)
    assert scene.look(71).ranks == ("1",)


def test_a_rank_outside_every_stage_has_a_minute_and_is_shown(scene):
    ranks = scene.warm_up()
    hold_in(ranks[1:], "all_reduce@0", 5)
    assert scene.look(50).state == "insufficient evidence"
    assert scene.look(61).ranks == ("0",)
    ranks[0].writes_stacks("main", "train", "next_batch")
    early = Scene(scene.folder).look(12)
    assert (early.state, early.cause) == ("insufficient evidence", "long wait")
    assert "for rank 0, which has been at next_batch (train.py:7) for" in early.summary
    verdict = Scene(scene.folder).look(61)
    assert (verdict.ranks, verdict.stage) == (("0",), "idle")
    assert any("next_batch (train.py:7)" in line for line in verdict.evidence)


SLEEPS = ("sleep", "300")
COMPUTES = (sys.executable, "-c", "while True: pass")
POLLS = (sys.executable, "-c", "import time\nwhile True: time.sleep(0.02)")


@pytest.mark.parametrize(("command", "limit"), [(SLEEPS, 60), (COMPUTES, 300), (POLLS, 300)])
def test_a_rank_at_work_outside_every_stage_has_five_minutes(scene, monkeypatch, command, limit):
    at_work(scene, monkeypatch, command, num_steps=4)
    early = scene.look(limit - 5)
    assert early.state == "insufficient evidence"
    assert ("rank 0, which has computed or polled at" in early.summary) == (command != SLEEPS)
    verdict = scene.look(limit + 2)
    assert verdict.ranks == ("0",)
    assert ("computed or polled" in verdict.evidence[0]) == (command != SLEEPS)


@pytest.mark.parametrize(
    ("command", "before_guest", "limit"),
    [(SLEEPS, 1000.0, 60), (POLLS, 1000.0, 600), (POLLS, 0.0, 300)],
)
def test_who_did_so_when_its_guest_came_may_fetch_a_rollout(
    scene, monkeypatch, command, before_guest, limit
):
    monkeypatch.setattr(Track, "seconds_before_guest", before_guest)
    at_work(scene, monkeypatch, command, num_steps=0)
    assert scene.look(limit - 5).state == "insufficient evidence"
    assert scene.look(limit + 2).ranks == ("0",)


def at_work(scene: Scene, monkeypatch, command: tuple[str, ...], num_steps: int) -> None:
    """Rank 0 runs this outside all stages, seen for a second; the others wait for it."""
    # this host may be busy: a test of its own
    monkeypatch.setattr(progress.KernelLook, "processor_share", lambda *_: 1.0)
    monkeypatch.setattr(progress, "_SEEN_SECONDS", 0.5)
    monkeypatch.setattr(progress, "_LOOK_EVERY_NS", SECOND // 10)
    ranks = scene.add(WORLD_SIZE)
    ranks[0].dies()
    ranks[0].runs(*command)
    for step in range(1, num_steps + 1):
        for rank in ranks:
            rank.step(step)
            rank.took_part("all_reduce@0", step)
        scene.look()
    if not num_steps:
        for rank in ranks:
            rank.reports_group("0", 4)
    hold_in(ranks[1:], "all_reduce@0", 5)
    ranks[0].writes_stacks("main", "train", "fetch_rollouts")
    scene.look(3)
    time.sleep(1)
    scene.look(3)


def test_gaps_before_the_guest_came_are_known_to_the_flight_recorder(scene, monkeypatch):
    monkeypatch.setattr(Track, "seconds_before_guest", 1000.0)
    for rank in scene.add(WORLD_SIZE):
        is_absent = rank is scene.ranks[1]
        issued = [] if is_absent else [("all_reduce", 8, False)]
        rank.writes_flight(REDUCED, *issued, longest_gap=120 if is_absent else 2)
        rank.writes_stacks("main", "fetch_rollouts" if is_absent else "backward")
    assert scene.look(230).state == "insufficient evidence"
    verdict = scene.look(241)
    assert verdict.ranks == ("1",)
    assert "up to 120 s so far" in verdict.evidence[0]


def test_who_is_often_quiet_outside_stages_may_be_so_twice_as_long(scene, monkeypatch):
    monkeypatch.setattr(tracking, "_SHORTEST_GAP_NS", SECOND // 100)
    ranks = scene.warm_up()
    scene.look()
    time.sleep(0.3)
    for rank in ranks:
        rank.step(5)
    scene.look()
    (track, *_) = scene.watch.tracks
    gap = track.longest_gap_seconds(time.monotonic_ns())
    assert 0.3 <= gap < 5
    assert track.longest_gap_seconds(time.monotonic_ns() + 3601 * SECOND) == 0.0
    ranks[1].took_part("broadcast@0", 6, seconds=7.0)
    scene.look()
    assert [t.longest_gap_seconds(time.monotonic_ns()) >= 7 for t in scene.watch.tracks].count(
        True
    ) == 1
    monkeypatch.setattr(Track, "longest_gap_seconds", lambda *_: 34.0)  # rank 0 asks a server
    hold_in(ranks[1:], "all_reduce@0", 5)
    ranks[0].writes_stacks("main", "train", "next_batch")
    calm = scene.look(67)
    assert calm.state == "clear"
    assert "waited for up to 34 s so far, may be quiet for 68 s" in calm.evidence[0]
    assert scene.look(69).ranks == ("0",)


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
    ranks[2].stops()
    verdict = scene.look(11)
    assert (verdict.ranks, verdict.cause, verdict.stage) == (("2",), "stopped", "rollout")
    assert verdict.action == f"Run `kill -CONT {ranks[2].owner.pid}` to resume it."


def test_a_rank_that_ended_while_the_others_wait_is_named(scene):
    ranks = scene.warm_up(runs={3: ending("os._exit(0)")})
    ranks[3].segment.finish()
    ranks[3].ends(is_reaped=False)
    hold_in(ranks[:3], "all_reduce@0", 5)
    verdict = scene.look(11)
    assert (verdict.ranks, verdict.cause) == (("3",), "left")
    assert "rank 3: ended with exit code 0, without taking part" in verdict.evidence


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
    assert scene.look(59).state == "clear"
    assert scene.look(100).state == "insufficient evidence", "no step took so long before"


def test_ranks_that_wait_on_a_device_are_known_by_the_number_that_they_have_issued(scene):
    ranks = scene.warm_up()
    for rank in ranks:
        rank.enters("backward")
        rank.reports_group("0", 4 if rank is ranks[1] else 6)
    verdict = scene.look(14)
    assert (verdict.ranks, verdict.stage) == (("1",), "backward")
    assert any("#6" in line for line in verdict.evidence)


def test_advancing_sequence_numbers_are_progress_without_records(scene):
    ranks = scene.warm_up()
    for rank in ranks:
        rank.reports_group("0", 5)
        rank.writes_stacks("main")
    scene.look()
    time.sleep(1.5)
    for rank in ranks:  # each when its own thread came by
        rank.reports_group("0", 90 if rank is ranks[1] else 91)
    assert scene.look(9).state == "clear"
    for rank in ranks:
        rank.writes_stacks("main")
    assert scene.look(62).ranks == ("1",)


def test_a_rank_that_works_while_another_thread_waits_is_not_blocked(scene):
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
    assert "ranks 0, 1, 3 wait in all_reduce, rank 2 waits in broadcast" in verdict.summary
    assert "rank 2 waits in broadcast@0 #5" in verdict.evidence


def test_ranks_that_wait_for_less_than_ten_seconds_count_in_a_mismatch(scene):
    ranks = scene.warm_up()
    ranks[1].waits("all_reduce@0", 5)
    ranks[0].waits("broadcast@0", 5)
    time.sleep(0.6)
    hold_in(ranks[2:], "all_reduce@0", 5)
    verdict = scene.look(9.7)
    assert (verdict.cause, verdict.ranks) == ("mismatched collectives", ("0",))


REDUCED = ("all_reduce", 8, True)


def test_two_records_do_not_show_which_rank_differs(scene):
    ranks = scene.add(WORLD_SIZE)
    ranks[0].writes_flight(REDUCED, ("all_reduce", 8, False))
    ranks[2].writes_flight(REDUCED, ("broadcast", 8, False))
    assert scene.look(11).state == "clear"
    assert scene.look(21).ranks == ("0", "2"), "nobody else will say it"


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (("broadcast", 8, False), "rank 2 called broadcast@0 #2 [8] float32"),
        (("broadcast", 8, True), "rank 2 called broadcast@0 #2 [8] float32"),  # its root is through
        (("all_reduce", 9, False), "rank 2 called all_reduce@0 #2 [9] float32"),
    ],
)
def test_the_flight_recorder_shows_a_hang_from_before_attach(scene, odd, said):
    for rank in scene.add(WORLD_SIZE):
        rank.writes_flight(REDUCED, odd if rank is scene.ranks[2] else ("all_reduce", 8, False))
    assert scene.look(9).state == "clear"
    verdict = scene.look(11)
    assert (verdict.cause, verdict.ranks) == ("mismatched collectives", ("2",))
    assert verdict.summary.startswith("Deadlock for 11 s: ranks 0, 1, 3 called all_reduce")
    assert "ranks 0, 1, 3 called all_reduce@0 #2 [8] float32" in verdict.evidence
    assert said in verdict.evidence
    assert verdict.since_seconds == pytest.approx(time.time(), abs=5)


def test_what_was_recorded_before_a_rank_moved_again_says_nothing(scene):
    for rank in scene.add(WORLD_SIZE):
        rank.writes_flight(REDUCED, ("all_reduce", 8 + rank.rank, False))
    assert scene.look(11).cause == "mismatched collectives"
    time.sleep(1.1)  # records are dated a second ahead
    for rank in scene.ranks:
        rank.enters("forward")
    assert scene.look(11).state == "clear"


def test_a_rank_that_did_not_come_is_named_by_the_recorder(scene, monkeypatch):
    for rank in scene.add(WORLD_SIZE):
        rank.writes_flight(REDUCED, *[] if rank is scene.ranks[1] else [("all_reduce", 8, False)])
    early = scene.look(70)
    assert early.state == "insufficient evidence"  # it may be compiling
    assert "wait in all_reduce for rank 1" in early.summary
    monkeypatch.setattr(Track, "seconds_before_guest", 1000.0)
    verdict = scene.look(71)
    assert (verdict.ranks, verdict.cause) == (("1",), "stuck")
    (line,) = (line for line in verdict.evidence if line.startswith("flight recorder"))
    assert "all_reduce@0 #2 [8] float32 issued by ranks 0, 2, 3" in line
    assert "not by rank 1, last call all_reduce@0 #1 [8] float32" in line


@pytest.mark.parametrize(
    ("seconds_ago", "functions", "is_found"),
    [
        (2400, ("main", "load_batch"), True),
        (500, ("main", "load_batch"), False),
        (2400, ("main", "save_checkpoint"), False),
        (2400, (), False),  # what it does is not known yet
    ],
)
def test_what_the_recorder_says_of_the_time_before_the_guest(
    scene, seconds_ago, functions, is_found
):
    for rank in scene.add(WORLD_SIZE):
        is_absent = rank is scene.ranks[1]
        issued = [] if is_absent else [("all_reduce", 8, False)]
        rank.writes_flight(REDUCED, *issued, seconds_ago=seconds_ago)
        if functions:
            rank.writes_stacks(*functions if is_absent else ("main", "backward"))
    verdict = scene.look(11)
    assert (verdict.state == "found") == is_found, verdict.summary
    if is_found:
        assert (verdict.ranks, verdict.cause) == (("1",), "stuck")
        assert "Rank 1 has been stuck at load_batch (train.py:7) for 2411 s." in verdict.summary
        assert "for 2411 s" in verdict.summary.partition(".py:7) for 2411 s.")[2]
        assert "no collective for 40 min" in verdict.evidence[0]
        assert verdict.since_seconds == pytest.approx(time.time() - 2400, abs=5)
        time.sleep(1.1)  # records are dated a second ahead
        scene.ranks[1].enters("forward")
        assert scene.look(2).state != "found"


def test_two_groups_waiting_for_each_other_are_a_mismatch(scene):
    ranks = scene.warm_up()
    for rank in ranks:
        rank.took_part("all_gather@1", 1)
        rank.took_part("all_gather@2", 1)
        rank.enters("weight_sync")
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


def test_a_collective_inside_a_wait_that_the_job_marks_is_one_wait(scene):
    ranks = scene.warm_up()
    for rank in ranks:
        rank.enters("barrier", WAIT)
    hold_in(ranks, "barrier@0", 5)
    verdict = scene.look(31)
    assert verdict.cause == "collective does not finish"
    assert verdict.summary.startswith("Ranks 0, 1, 2, 3 wait in barrier for")


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
    assert "6 ranks of the job are not observed" in verdict.summary


def test_who_only_serves_and_moves_no_more_is_neither_found_nor_clear(scene):
    """No step says how long it may take: an idle notebook looks like a server that is stuck."""
    scene.add(1, world_size=1)[0].ended("forward")
    assert scene.look(119).state == "clear"
    verdict = scene.look(121)
    assert (verdict.state, verdict.cause) == ("insufficient evidence", "")
    assert verdict.summary.startswith("Nothing has moved for 121 s, and no finished step says")


def test_a_run_in_which_nothing_moves_has_no_progress(scene):
    scene.warm_up()
    assert scene.look(119).state == "insufficient evidence"
    verdict = scene.look(121)
    assert (verdict.state, verdict.cause, verdict.stage) == ("found", "no progress", "idle")


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
