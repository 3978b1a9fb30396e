"""Who was first and who only went with them, by when and how they ended."""

from __future__ import annotations

import signal

from dfx_agent.facts.exit_status import ExitStatus
from dfx_agent.facts.rank import RankFacts
from dfx_agent.judge.crash.order import first_of, was_taken_along

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
    return [rank.label for rank in first_of(ranks)]


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


def test_who_was_killed_after_somebody_was_told_to_end_went_with_the_job():
    told = died(9, TERM, (49, 50))
    for one, expected in (
        (died(0, KILL, (59, 60)), True),
        (died(0, KILL, (49, 50)), False),  # not after it
        (died(0, KILL, (39, 40)), False),
        (died(0, SEGV, (59, 60)), False),
        (died(0, None, (59, 60)), False),
        (died(0, KILL, (59, 60), was_oom_killed=True), False),
    ):
        assert was_taken_along(one, [told, one]) is expected
    one, unknown = died(0, KILL, (59, 60)), died(1, None, (0, 1))
    assert was_taken_along(one, [unknown, told, one])
    assert not was_taken_along(one, [unknown, one])
    assert not was_taken_along(one, [one, died(1, SEGV, (4, 5))])


def test_who_was_told_to_end_went_with_the_job_only_where_somebody_was_dead_before():
    told = died(1, TERM, (49, 50))
    assert not was_taken_along(told, [told])
    assert was_taken_along(told, [told, died(0, SEGV, (20, 30))])
    assert was_taken_along(told, [told, died(0, FAILED, (20, 30), there_ns=99)]), "long before"
    assert not was_taken_along(told, [told, died(0, SEGV, (51, 60))])
    assert was_taken_along(told, [told, died(0, FAILED, (45, 55))]), "a launcher may have seen it"
    still_there = died(0, FAILED, (45, 55), there_ns=70)
    assert not was_taken_along(told, [told, still_there]), "no launcher has seen its end"
    assert not was_taken_along(told, [told, died(0, TERM, (20, 30))])


def test_who_was_waited_for_was_not_told_to_end_since_the_others_failed():
    told = died(1, TERM, reached={"0": 45})
    assert not was_taken_along(told, [told, died(0, FAILED, reached={"0": 46})])
    assert was_taken_along(told, [told, died(0, FAILED, reached={"0": 45})])
