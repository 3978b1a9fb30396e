"""Who was first and who only went with them, by when and how they ended."""

from __future__ import annotations

import signal
from dataclasses import replace

from dfx_agent.facts.rank import ExitStatus, Failure, RankFacts
from dfx_agent.judge.crash.order import first_to_die, was_ended_by_launcher

KILL, TERM, SEGV, ABRT = (
    ExitStatus(None, number)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT)
)
FAILED = ExitStatus(1, None)


def died(
    label: int, status: ExitStatus | None, between: tuple[int, int] = (40, 50), **known
) -> RankFacts:
    """Last known to go on and missed at these two instants."""
    alive_ns, gone_ns = between
    return RankFacts(
        label=str(label), pid=100 + label, state="died", exit_status=status, now_ns=1000,
        alive_ns=alive_ns, gone_ns=gone_ns, **known,
    )  # fmt: skip


def first(*ranks: RankFacts) -> list[str]:
    return [rank.label for rank in first_to_die(ranks)]


def test_who_was_missed_before_the_others_were_seen_last_was_first():
    assert first(died(0, FAILED, (51, 60)), died(1, FAILED, (40, 50))) == ["1"]
    assert first(died(0, SEGV, (51, 60)), died(1, FAILED, (40, 50))) == ["1"], "in spite of it"


def test_of_those_between_the_same_readings_who_was_killed_was_first():
    for status in (KILL, SEGV, ABRT):
        assert first(died(0, FAILED), died(1, status), died(2, FAILED)) == ["1"]
        later = died(1, status, (45, 60))  # it was looked at before rank 0 in that reading
        assert first(died(0, FAILED), later) == ["1"]
    assert first(died(0, FAILED), died(1, FAILED)) == ["0", "1"]
    assert first(died(0, SEGV), died(1, SEGV)) == ["0", "1"]


def test_who_was_waited_for_was_before_those_that_failed_for_want_of_it():
    raised = died(1, FAILED, reached={"0": 45})
    waited = died(0, FAILED, reached={"0": 46})
    assert first(waited, raised) == ["1"]
    aborted = died(0, ABRT, reached={"0": 46})  # by torch, since the other one is gone
    assert first(aborted, raised) == ["1"]
    killed = died(0, KILL, reached={"0": 46})
    assert first(killed, raised) == ["0"], "nobody is killed for an exception of a peer"
    both = killed, died(1, KILL, reached={"0": 45})
    assert first(*both) == ["0", "1"], "nor for a peer that is waited for"


def test_a_kill_after_a_sigterm_of_a_peer_is_the_end_of_the_job():
    reported = died(9, TERM, (49, 50))
    for one, expected in (
        (died(0, KILL, (59, 60)), True),
        (died(0, KILL, (50, 60)), True),
        (died(0, KILL, (45, 60)), False),  # noticed later, and nobody saw it alive after rank 9
        (died(0, KILL, (49, 50)), False),  # not after it
        (died(0, KILL, (39, 40)), False),
        (died(0, SEGV, (59, 60)), False),
        (died(0, None, (59, 60)), False),
        (died(0, KILL, (59, 60), was_oom_killed=True), False),
    ):
        assert was_ended_by_launcher(one, [reported, one]) is expected
    one, unknown = died(0, KILL, (59, 60)), died(1, None, (0, 1))
    assert was_ended_by_launcher(one, [unknown, reported, one])
    assert not was_ended_by_launcher(one, [unknown, one])
    assert not was_ended_by_launcher(one, [one, died(1, SEGV, (4, 5))])


def test_sigterm_is_the_end_of_the_job_only_after_an_earlier_death():
    reported = died(1, TERM, (49, 50))
    assert not was_ended_by_launcher(reported, [reported])
    assert was_ended_by_launcher(reported, [reported, died(0, SEGV, (20, 30))])
    assert was_ended_by_launcher(reported, [reported, died(0, FAILED, (20, 30), there_ns=99)]), (
        "long before"
    )
    assert not was_ended_by_launcher(reported, [reported, died(0, SEGV, (51, 60))])
    assert was_ended_by_launcher(reported, [reported, died(0, FAILED, (45, 55))]), (
        "a launcher may have seen it"
    )
    still_there = died(0, FAILED, (45, 55), there_ns=70)
    assert not was_ended_by_launcher(reported, [reported, still_there]), (
        "no launcher has seen its end"
    )
    assert not was_ended_by_launcher(reported, [reported, died(0, TERM, (20, 30))])


def test_a_rank_that_others_waited_for_was_not_ended_by_their_failure():
    reported = died(1, TERM, reached={"0": 45})
    assert not was_ended_by_launcher(reported, [reported, died(0, FAILED, reached={"0": 46})])
    assert was_ended_by_launcher(reported, [reported, died(0, FAILED, reached={"0": 45})])


def raised(label: int, at_ns: int, message: str = "injected", **known) -> RankFacts:
    """Its exception, at this instant; it was missed a while later."""
    failure = Failure(at_ns, "RuntimeError", message, "/job/train.py", 42, "step")
    return died(label, FAILED, (at_ns, 90), failure=failure, **known)


def test_the_rank_that_raised_first_was_first_whoever_ended_first():
    assert first(raised(0, 45), raised(1, 44), raised(2, 60)) == ["1"]
    took_long = replace(raised(1, 44), gone_ns=200)
    assert first(raised(0, 60), took_long) == ["1"]


def test_the_loss_of_a_peer_never_precedes_an_own_error():
    closed = "[pair.cc:553] Connection closed by peer [10.0.0.2]:29500"
    assert first(raised(0, 44, closed), raised(1, 45)) == ["1"]
    assert first(raised(0, 44, closed), died(1, FAILED)) == ["0", "1"], "nothing tells them apart"
    assert first(raised(0, 44, closed), died(1, KILL, (40, 60))) == ["1"]


def test_errors_of_two_nodes_within_the_precision_of_clocks_have_no_order():
    a, b = raised(0, 44, node="node-a"), raised(3, 45, node="node-b")
    assert first(a, b) == ["0", "3"]


def test_a_killed_rank_that_was_noticed_after_a_terminated_peer_was_first():
    """The launcher of its node ended the peer because of it, between two readings."""
    killed, ended = died(3, KILL, (40, 60)), died(2, TERM, (40, 50))
    lost = [raised(rank, 55, "Connection reset by peer") for rank in (0, 1)]
    all_ranks = [killed, ended, *lost]
    assert not was_ended_by_launcher(killed, all_ranks)
    assert was_ended_by_launcher(ended, all_ranks)
    assert first(*(r for r in all_ranks if not was_ended_by_launcher(r, all_ranks))) == ["3"]


def test_a_rank_terminated_after_losing_its_peer_was_not_killed_with_it():
    """torchrun terminates what still runs: seen as "Ranks 2, 3 failed; were killed by signal 9"."""
    lost = replace(raised(2, 44, "Connection closed by peer"), exit_status=TERM)
    assert first(lost, died(3, KILL, (40, 60))) == ["3"]
    own = replace(raised(2, 44), exit_status=TERM)
    assert first(own, died(3, FAILED)) == ["2"]


def test_deaths_without_evidence_have_no_order_however_they_were_noticed():
    noticed_first = died(0, FAILED, (40, 50), is_outlived=True)
    assert first(noticed_first, died(1, FAILED, (45, 60))) == ["0", "1"]
