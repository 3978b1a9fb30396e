"""Who crashed, concluded from facts made by hand: no process, no file, no clock."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from dfx_agent.facts.rank import Arrival, ExitStatus, Failure, RankFacts
from dfx_agent.judge.crash.verdict import crash_verdict
from dfx_agent.snapshot import Verdict

SECOND = 10**9
NOW = 10**6 * SECOND
FAILED = ExitStatus(1, None)
SEGV, TERM, KILL = (ExitStatus(None, s) for s in (signal.SIGSEGV, signal.SIGTERM, signal.SIGKILL))


def lives(label: int, **known) -> RankFacts:
    return RankFacts(
        label=str(label), rank=label, pid=100 + label, world_size=4, now_ns=NOW,
        now_seconds=NOW / 1e9, moved_ns=NOW, step=7, num_steps=7, **known,
    )  # fmt: skip


def died(label: int, status: ExitStatus | None = SEGV, ago: float = 5.0, **known) -> RankFacts:
    facts = {"is_outlived": True, "stages": ("backward",), "open_spans": ("backward",), **known}
    gone_ns = NOW - int(ago * SECOND)
    return lives(label, state="died", exit_status=status, gone_ns=gone_ns, **facts)


def failed(label: int, ago: float = 5.0, **known) -> RankFacts:
    """By an exception: its exit handlers have closed its segment, which closed its last step."""
    facts = {"state": "exited", "step": None, "last_step": 7, "stages": (), **known}
    return replace(died(label, FAILED, ago), open_spans=(), **facts)


def judged(*ranks: RankFacts, named: tuple[int, ...] = ()) -> Verdict:
    return crash_verdict("trainer", ranks, NOW, named)


def test_ranks_that_live_or_ended_in_order_are_clear():
    ended = lives(1, state="exited", exit_status=ExitStatus(0, None), gone_ns=NOW)
    assert judged(lives(0), ended).state == "clear"
    assert judged(lives(0)).summary == "No rank has died."


def test_a_rank_that_was_killed_is_found_with_where_it_stood():
    found = judged(lives(0), lives(1), died(2), lives(3))
    assert (found.state, found.ranks, found.stage, found.step) == ("found", ("2",), "backward", 7)
    assert "killed by signal 11 (SIGSEGV)" in found.summary
    assert found.evidence[0].startswith("rank 2 (pid 102): in backward of step 7")
    assert found.since_seconds == pytest.approx(NOW / 1e9 - 5)


def test_the_first_death_is_to_blame_and_waiting_ranks_are_listed():
    waits = lives(1, arrivals=(Arrival("all_reduce", "0", 42, NOW - SECOND),))
    found = judged(died(0, ago=3), waits, died(2, ago=9))
    assert found.ranks == ("2",)
    assert "rank 0 died 6 s later" in found.evidence
    assert "rank 1 waits in all_reduce@0 #42" in found.evidence


@pytest.mark.parametrize(
    "left",
    [
        {"state": "exited", "gone_ns": NOW - 4 * SECOND},  # missed after them, no exit code
        {"state": "exited", "gone_ns": NOW - 4 * SECOND, "exit_status": ExitStatus(0, None)},
        {"is_ending": True},  # its interpreter shuts down
    ],
)
def test_who_ended_in_order_before_the_others_lost_it_is_named_whenever_it_was_missed(left):
    failure = Failure(NOW - 6 * SECOND, "RuntimeError", "Connection closed by peer", "a.py", 3, "f")
    lost = [
        failed(rank, failure=failure, reached={"0": 46}, last_event_ns=NOW - 6 * SECOND)
        for rank in (0, 1)
    ]
    lost[1] = replace(lost[1], exit_status=None)
    gone = lives(2, reached={"0": 45}, last_event_ns=NOW - 7 * SECOND, last_step=7)
    found = judged(*lost, replace(gone, step=None, **left))
    assert (found.ranks, found.cause) == (("2",), "left early")
    assert "Ranks 0, 1 failed with exit code 1 afterwards." in found.summary


def test_a_job_ended_from_outside_has_not_crashed():
    verdict = judged(*(died(rank, TERM) for rank in range(4)))
    assert verdict.state == "insufficient evidence"
    assert "The job was stopped from outside" in verdict.summary


def test_ranks_that_nobody_outlived_are_not_put_in_order():
    verdict = judged(died(0, None, is_outlived=False), died(1, None, is_outlived=False))
    assert (verdict.state, verdict.ranks) == ("insufficient evidence", ())
    assert "The order is unknown" in verdict.summary


def test_one_rank_of_a_job_of_one_that_died_is_found():
    assert judged(died(0, is_outlived=False)).ranks == ("0",)


def test_a_child_of_a_rank_that_lives_on_is_no_rank_that_died():
    child = died(1, ExitStatus(1, None), parent_pid=100)
    verdict = judged(lives(0), child)
    assert verdict.state == "clear"
    assert "a child process of a rank that is still running" in verdict.summary


def test_who_was_killed_stays_to_blame_when_the_others_turn_out_to_have_failed():
    killed = died(1, KILL)
    assert judged(lives(0, arrivals=()), killed).ranks == ("1",)
    found = judged(failed(0, is_outlived=False), killed)
    assert (found.state, found.ranks) == ("found", ("1",))
    assert "killed by signal 9 (SIGKILL)" in found.summary


def test_what_is_unclear_later_does_not_clear_who_was_named():
    ranks = [died(i, None, is_outlived=False) for i in (0, 1)]
    assert judged(*ranks).state == "insufficient evidence"
    found = judged(*ranks, named=(101,))
    assert (found.state, found.ranks) == ("found", ("1",))
    assert judged(*ranks, named=(77,)).state == "insufficient evidence", "another attempt"


def test_the_step_of_one_that_raised_is_known():
    assert judged(lives(0), failed(1)).step == 7


def test_one_rank_ended_before_all_others_is_to_blame():
    reported = died(1, TERM, reached={"0": 45})
    others = [failed(i, reached={"0": 46}) for i in (0, 2)]
    found = judged(*others, reported)
    assert (found.state, found.ranks) == ("found", ("1",))
    assert "(SIGTERM) while other ranks continued" in found.summary
    assert "rank 0 failed with exit code 1" in found.evidence


def test_several_ranks_ended_by_sigterm_ended_with_the_job():
    reported = [died(i, TERM, reached={"0": 45}) for i in (1, 2)]
    verdict = judged(failed(0, reached={"0": 46}), *reported)
    assert verdict.state == "insufficient evidence"
    assert "The job was stopped from outside" in verdict.summary


def test_a_closed_segment_alone_is_neither_a_crash_nor_clear():
    ending = failed(1, exit_status=None, is_ending=True)
    verdict = judged(lives(0), ending)
    assert verdict.state == "insufficient evidence"
    assert verdict.summary == (
        "Rank 1 is shutting down. The cause will be known when it has exited."
    )
    assert judged(lives(0), replace(ending, is_ending=False)).state == "clear", "as an orderly end"
    assert judged(ending).state == "insufficient evidence", "the whole job ends, nobody knows how"
    long_ago = replace(ending, gone_ns=NOW - 121 * SECOND)
    assert judged(lives(0), long_ago).state == "clear", "its guest may have been detached"


def test_an_unseen_death_is_reported_with_its_own_time():
    alive_ns = NOW - 90 * SECOND
    found = judged(lives(0), died(1, None, ago=30, alive_ns=alive_ns))
    assert found.since_seconds == pytest.approx(NOW / 1e9 - 90)
    assert "it ended between 90 s and 30 s ago, unobserved" in found.evidence[0]
    later = judged(lives(0), died(1, None, ago=245, alive_ns=NOW - 255 * SECOND))
    assert "it ended about 4 min ago, unobserved" in later.evidence[0], "not 4 min and 4 min"
    seen = judged(lives(0), died(1, SEGV, ago=30, alive_ns=NOW - 31 * SECOND))
    assert seen.since_seconds == pytest.approx(NOW / 1e9 - 31)
    assert "nobody looked" not in seen.evidence[0]


def raised(label: int, message: str = "injected", **known) -> RankFacts:
    gone_ns = NOW - 5 * SECOND
    failure = Failure(gone_ns - 1, "RuntimeError", message, "/job/train.py", 42, "step")
    return failed(label, failure=failure, alive_ns=gone_ns - 1, **known)


def test_an_exception_is_named_with_its_type_message_file_and_line():
    found = judged(lives(0), raised(1))
    assert found.summary == (
        "Rank 1 failed with exit code 1: `RuntimeError: injected` at `train.py:42`."
    )
    assert found.action.startswith("Fix the error")
    assert "rank 1: RuntimeError: injected (/job/train.py:42 in step)" in found.evidence


def test_the_loss_of_a_peer_is_said_to_be_that():
    found = judged(lives(0), raised(1, "Connection closed by peer [10.0.0.2]:29500"))
    assert found.summary.startswith(
        "Rank 1 failed with exit code 1 after losing the connection to another rank: "
    )
    assert found.action == "Find the rank that ended first: see its log, or the hub of the job."


def test_a_long_message_is_cut_in_the_headline():
    found = judged(lives(0), raised(1, "many words " * 40))
    assert len(found.summary) < 220


def test_an_exception_does_not_explain_a_signal():
    """It was noted, and then another signal ended the process."""
    killed = replace(raised(1), exit_status=KILL, state="died")
    assert judged(lives(0), killed).summary.startswith("Rank 1 was killed by signal 9 (SIGKILL)")


def test_the_failure_of_a_thread_is_evidence():
    failure = Failure(1, "ValueError", "bad batch", "/job/data.py", 7, "fetch", "loader")
    found = judged(lives(0), failed(1, thread_failure=failure))
    assert (
        "rank 1, thread loader: ValueError: bad batch (/job/data.py:7 in fetch)" in found.evidence
    )


def test_an_exception_is_known_while_its_process_is_still_shutting_down():
    """On a loaded host that takes minutes, and the launcher terminates it meanwhile."""
    for known in ({"exit_status": None, "is_ending": True}, {"exit_status": TERM}):
        found = judged(lives(0), replace(raised(1), **known))
        assert (found.state, found.ranks) == ("found", ("1",))
        assert found.summary == "Rank 1 failed: `RuntimeError: injected` at `train.py:42`."
