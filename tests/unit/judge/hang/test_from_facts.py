"""Who hangs, concluded from facts made by hand: no process, no file, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfx_agent.facts.flight import FlightRecord, GroupKey, RecordedGroup
from dfx_agent.facts.rank import Arrival, ExitStatus, Joining, RankFacts
from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack
from dfx_agent.judge.hang.judge import HangJudge
from dfx_agent.snapshot import Suspicion, Verdict
from dfx_agent.snapshot.faults import Faults

SECOND = 10**9
NOW = 10**6 * SECOND


def rank(label: int, quiet: float = 14.0, **known) -> RankFacts:
    """One that has passed a few steps, with a stage that takes 2 s."""
    facts = {
        "world_size": 4, "pid": 100 + label, "step": 7, "num_steps": 7, "num_still": 9,
        "step_durations": (5 * SECOND,) * 7, "stage_durations": {"backward": (2 * SECOND,) * 7},
        "reached": {"0": 41}, "stacks": None,
    }  # fmt: skip
    return RankFacts(
        label=str(label), rank=label, now_ns=NOW, now_seconds=NOW / 1e9,
        moved_ns=NOW - int(quiet * SECOND), **{**facts, **known},
    )  # fmt: skip


def waits(label: int, seconds: float = 14.0, **known) -> RankFacts:
    arrival = Arrival("all_reduce", "0", 42, NOW - int(seconds * SECOND))
    return rank(label, seconds, arrivals=(arrival,), is_blocked=True, reached={"0": 42}, **known)


def judged(*ranks: RankFacts, judge: HangJudge | None = None, quiet: float = 0.0) -> Verdict:
    judge = judge or HangJudge(Faults(), "r")
    (hang,) = (v for v in judge.verdicts({"trainer": ranks}, quiet, NOW / 1e9) if v.kind == "hang")
    return hang


def stack(function: str, file: str = "train.py") -> ProcessStacks:
    frames = (Frame("train.py", 1, "main"), Frame(file, 7, function))
    return ProcessStacks("guest", NOW, (ThreadStack("MainThread", 1, is_main=True, frames=frames),))


def test_a_role_without_facts_gets_on():
    judge = HangJudge(Faults(), "r")
    hang, crash = judge.verdicts({"trainer": ()}, 0.0, 1.0)
    assert (hang.kind, hang.state) == ("hang", "clear")
    assert (crash.kind, crash.state) == ("crash", "clear")


def test_who_is_quiet_in_a_short_stage_is_to_blame():
    stuck = rank(2, stages=("backward",))
    found = judged(waits(0), waits(1), stuck, waits(3))
    assert (found.state, found.cause, found.ranks, found.stage) == (
        "found", "stuck", ("2",), "backward",
    )  # fmt: skip
    assert "Ranks 0, 1, 3 wait in all_reduce for 14 s." in found.summary
    assert "ranks 0, 1, 3 wait in all_reduce@0 #42" in found.evidence
    assert "rank 2: last collective of group 0 is #41, the others are in #42" in found.evidence
    assert found.since_seconds == pytest.approx(NOW / 1e9 - 14)


LIB = "/usr/lib/python3.11"
OUTSIDE = [
    (stack("sleep_on", "train.py"), 60, "has been at sleep_on (train.py:7) for"),
    (
        stack("wait", f"{LIB}/subprocess.py"),
        300,
        "has waited for a child process at main (train.py:1)",
    ),
    (
        stack("get", f"{LIB}/multiprocessing/queues.py"),
        300,
        "has waited for a queue or a pipe at main",
    ),
    (stack("copyfileobj", f"{LIB}/shutil.py"), 300, "has waited for files at main"),
    (None, 60, "has been outside all stages for"),
]


@pytest.mark.parametrize(("stacks", "limit", "words"), OUTSIDE)
def test_the_first_long_time_outside_all_stages_is_not_known_to_be_a_hang(stacks, limit, words):
    def after(seconds: float) -> Verdict:
        return judged(waits(0), rank(1, seconds, stacks=stacks))

    if stacks is None:  # they are due, and may show a checkpoint
        assert after(12).state == "clear"
    for seconds in (16 if stacks is None else 12, 25, limit - 1):
        early = after(seconds)
        assert (early.state, early.cause) == ("insufficient evidence", "long wait")
        assert f"for rank 1, which {words}" in early.summary
        assert f"It is called a hang after {limit} s." in early.summary
        suspicion = Suspicion(("1",), NOW / 1e9 - seconds, limit)
        assert (early.ranks, early.suspicion) == ((), suspicion), "nobody is blamed yet"
    late = after(limit + 1)
    assert (late.state, late.cause, late.ranks) == ("found", "stuck", ("1",))


def test_an_empty_data_loader_is_said_once():
    in_queue = stack("get", f"{LIB}/multiprocessing/queues.py")
    late = judged(waits(0), rank(1, 25, stacks=in_queue, open_spans=("data_loader",)))
    expected = (
        "for rank 1, which has been waiting for its data loader, at main (train.py:1) for 25 s"
    )
    assert expected in late.summary


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((waits(0), waits(1)), " Ranks 0, 1 wait in all_reduce for 14 s."),
        ((waits(0, 4.0), waits(1, 4.0)), ""),
        ((rank(0, 3.0), rank(1, 3.0)), ""),
    ],
    ids=["long", "just now", "not at all"],
)
def test_who_is_stopped_inside_a_collective_is_not_among_those_who_wait(others, words):
    found = judged(*others, waits(2, is_stopped=True))
    suspended = "Rank 2 has been suspended (state T) for 14 s, in all_reduce."
    assert found.summary == f"{suspended}{words}"
    assert found.action == "Run `kill -CONT 102` to resume it."


def test_what_was_seen_outside_all_stages_is_usual_twice_as_long():
    def after(seconds: float) -> str:
        return judged(waits(0), rank(1, seconds, stacks=stack("f"), longest_gap_seconds=40.0)).state

    assert [after(s) for s in (79, 81)] == ["clear", "found"]


@pytest.mark.parametrize(("seconds", "words"), [(90, "so far"), (7200, "in the last hour")])
def test_no_longer_time_is_claimed_than_was_watched(seconds, words):
    known = {"stacks": stack("f"), "longest_gap_seconds": 20.0, "begin_ns": NOW - seconds * SECOND}
    found = judged(waits(0, 80.0), rank(1, 80.0, **known))
    assert found.stage_text == "outside all stages"
    (line,) = [line for line in found.evidence if "quiet or waited" in line]
    assert f"outside all stages: ranks were quiet or waited for up to 20 s {words}, may" in line


def test_a_word_on_the_stack_does_not_outweigh_what_a_stage_takes():
    known = {"stages": ("backward",), "stage_durations": {"backward": (SECOND // 700,) * 73}}
    named, compiles = stack("save_metrics"), stack("f", "/s/torch/_dynamo/convert_frame.py")

    def after(seconds: float, stacks: ProcessStacks) -> str:
        return judged(waits(0), rank(1, seconds, stacks=stacks, **known)).state

    assert [after(s, named) for s in (59, 61)] == ["clear", "found"]
    assert [after(s, compiles) for s in (599, 601)] == ["clear", "found"]


def test_a_helper_that_goes_on_does_not_hide_who_trains_for_ever():
    def after(seconds: float, **known) -> Verdict:
        helped = {"others_moved_ns": NOW - SECOND, "stages": ("backward",), **known}
        return judged(waits(0), rank(1, seconds, stacks=stack("f"), **helped))

    assert after(14).state == "insufficient evidence"
    assert "another thread of it is active: 60 s" in after(14).evidence[0]
    assert after(61).ranks == ("1",)
    own_group, other_group = {"0": NOW - SECOND}, {"5": NOW - SECOND}
    assert after(61, group_moved_ns=own_group).state != "found"  # what the others wait in goes on
    assert after(61, group_moved_ns=other_group).ranks == ("1",)


def test_a_stopped_rank_explains_a_stuck_one():
    stopped, stuck = rank(1, stages=("backward",), is_stopped=True), rank(2, stages=("backward",))
    found = judged(waits(0), stopped, stuck, waits(3))
    assert (found.cause, found.ranks) == ("stopped", ("1",))
    assert found.action == "Run `kill -CONT 101` to resume it."


def test_a_rank_that_died_is_a_crash_and_no_hang():
    died = rank(
        2, state="died", exit_status=ExitStatus(None, 11), gone_ns=NOW - SECOND, is_outlived=True
    )
    judge = HangJudge(Faults(), "r")
    ranks = (waits(0), waits(1), died, waits(3))
    hang, crash = judge.verdicts({"trainer": ranks}, 0.0, NOW / 1e9)
    assert hang.state == "clear"
    assert (crash.state, crash.ranks) == ("found", ("2",))
    assert "SIGSEGV" in crash.summary


def in_groups(*groups: str, **known) -> list[RankFacts]:
    """Two ranks, each in an all_reduce of its own group, that wait for 31 s."""
    return [
        rank(i, 31, world_size=2, is_blocked=True, reached={"0": 41} | {group: 42},
             arrivals=(Arrival("all_reduce", group, 42, NOW - 31 * SECOND),), **known)
        for i, group in enumerate(groups)
    ]  # fmt: skip


def test_a_group_that_only_one_has_used_is_known_to_its_flight_recorder():
    in_world, in_new = in_groups("0", "7")
    record = RecordedGroup("", (0, 1), ())
    flight = FlightRecord(NOW, 1, {GroupKey("gloo", "7", 1): record})
    early = [replace(r, arrivals=(r.arrivals[0]._replace(begin_ns=NOW - 12 * SECOND),))
             for r in (in_world, replace(in_new, flight=flight))]  # fmt: skip
    found = judged(*early)
    assert (found.cause, found.ranks) == ("mismatched collectives", ("0", "1"))
    assert "rank 0 waits in all_reduce, rank 1 waits in all_reduce of group 7" in found.summary
    assert found.evidence[:2] == (
        "rank 0 waits in all_reduce@0 #42",
        "rank 1 waits in all_reduce@7 #42",
    )


def test_members_are_not_said_to_be_elsewhere_when_all_ranks_are_here():
    in_new, other = in_groups("7", "0")
    works = replace(other, arrivals=(), is_blocked=False, stages=("rollout",), reached={"0": 41})
    reported = judged(in_new, works)
    assert reported.state == "insufficient evidence"
    assert "Which other ranks belong to its process group is not known." in reported.summary
    part = judged(*(replace(r, world_size=8) for r in (in_new, works)))
    assert "6 ranks of the job are not observed by this agent." in part.summary


def test_one_of_a_sweep_that_is_silent_is_told():
    def one(label: int, quiet: float, **known) -> RankFacts:
        return rank(label, quiet, world_size=1, reached={}, step_durations=(SECOND // 10,) * 9,
                    **known)  # fmt: skip

    others = one(0, 0.1), one(1, 0.2)
    assert judged(*others, one(2, 59)).state == "clear"
    silent = judged(*others, one(2, 61, stacks=stack("load")))
    assert (silent.state, silent.cause) == ("insufficient evidence", "long wait")
    assert "Rank 2 has not moved for 61 s, outside all stages" in silent.summary
    assert any("load (train.py:7)" in line for line in silent.evidence)
    slow = one(2, 61, longest_gap_seconds=50.0)
    assert judged(*others, slow).state == "clear"


def test_nothing_moves_in_the_whole_run():
    standing = [rank(i, 130, stages=("backward",), stacks=stack("backward")) for i in range(4)]
    still = [replace(item, reached={}) for item in standing]
    assert judged(*still, quiet=119).state == "clear"
    assert judged(*still, quiet=130).cause == "no progress"


def test_a_notebook_between_two_cells_is_nobodys_fault():
    idle = stack("run_forever", "/venv/lib/python3.11/site-packages/ipykernel/kernelapp.py")
    alone = rank(0, 130, world_size=1, reached={}, stacks=idle)
    found = judged(alone, quiet=130)
    assert found.state == "insufficient evidence"
    assert "for a person, in a notebook" in found.summary


def test_who_frees_gloo_with_the_lock_held_does_not_end():
    joining = Joining("pt_gloo_runloop", 9.0, 180.0)
    found = judged(rank(0, 20, world_size=1, joining=joining))
    assert (found.cause, found.ranks) == ("does not end", ("0",))
    awake = replace(joining_of := rank(0, 20, joining=joining), stacks=stack("join"))
    assert joining_of.joining is joining
    assert judged(awake).state != "found"


def test_a_finding_stands_when_its_ranks_are_gone_and_nobody_moved():
    judge = HangJudge(Faults(), "r")
    ranks = [waits(0), waits(1), rank(2, stages=("backward",)), waits(3)]
    found = judged(*ranks, judge=judge)
    assert found.state == "found"
    later = NOW + SECOND
    ended = [replace(r, now_ns=later, state="died", gone_ns=later) for r in ranks]
    assert judged(*ended, judge=judge) is found


def test_who_was_not_seen_to_stand_often_enough_is_not_accused():
    judge = HangJudge(Faults(), "r")
    judge.verdicts({}, 0.0, NOW / 1e9 - 60)  # a reading that took a minute
    ranks = [replace(r, num_still=1) for r in (waits(0), rank(1, stages=("backward",)))]
    doubted = judged(*ranks, judge=judge)
    assert doubted.state == "insufficient evidence"
    assert doubted.summary.startswith("This agent could not read for 60 s")


def ending(label: int, seconds: float, **known) -> RankFacts:
    """Its exit handlers have closed its segment; how its process ends is not known yet."""
    facts = {"state": "exited", "gone_ns": NOW - int(seconds * SECOND), "is_ending": True, **known}
    return rank(label, step=None, last_step=7, **facts)


def test_who_closed_its_records_and_still_ends_has_not_left_yet():
    hang = judged(waits(0), waits(1), ending(2, 14), waits(3))
    assert hang.state == "insufficient evidence"
    assert "rank 2, which has been shutting down for 14 s" in hang.summary
    late = judged(waits(0), waits(1), ending(2, 121), waits(3))
    assert (late.state, late.cause, late.ranks, late.step) == ("found", "left", ("2",), 7)
    assert late.summary.startswith("Rank 2 closed its records")


def test_who_left_and_turns_out_to_have_failed_has_crashed():
    judge = HangJudge(Faults(), "r")
    others = [waits(0), waits(1), waits(3)]
    assert judged(*others, ending(2, 121), judge=judge).cause == "left"
    status = ExitStatus(1, None)
    later = NOW + SECOND
    ranks = [
        *(replace(r, now_ns=later, state="exited", gone_ns=later, arrivals=()) for r in others),
        ending(2, 121, is_ending=False, exit_status=status, is_outlived=True),
    ]
    hang, crash = judge.verdicts({"trainer": ranks}, 0.0, NOW / 1e9)
    assert hang.state == "clear"
    assert (crash.state, crash.ranks, crash.step) == ("found", ("2",), 7)


def test_a_crash_that_was_found_is_not_taken_back_by_what_is_unclear():
    judge = HangJudge(Faults(), "r")
    gone = {"state": "died", "gone_ns": NOW - SECOND}
    ranks = (rank(0), rank(1, **gone))
    assert judge.verdicts({"trainer": ranks}, 0.0, NOW / 1e9)[1].ranks == ("1",)
    both = (rank(0, **gone), rank(1, **gone))
    crash = judge.verdicts({"trainer": both}, 0.0, NOW / 1e9)[1]
    assert (crash.state, crash.ranks) == ("found", ("1",))
    fresh = HangJudge(Faults(), "r").verdicts({"trainer": both}, 0.0, NOW / 1e9)[1]
    assert fresh.state == "insufficient evidence"
