"""Which ends are crashes: by state, exit status and who made the process."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from dfx_agent.facts.rank import ExitStatus, RankFacts
from dfx_agent.judge.crash.endings import has_crashed
from dfx_agent.judge.crash.verdict import _lines, _unclear

PARENT = 77
KILL, TERM = ExitStatus(None, signal.SIGKILL), ExitStatus(None, signal.SIGTERM)
SEGV = ExitStatus(None, signal.SIGSEGV)


def rank(
    state: str, status: ExitStatus | None = None, *, parent: int = 1, pid: int = 2, oom=False,
    **known,
) -> RankFacts:  # fmt: skip
    facts = {"label": "0", "state": state, "exit_status": status, "was_oom_killed": oom, **known}
    return RankFacts(pid=pid, parent_pid=parent, **facts)


def crashed(one: RankFacts, *others: RankFacts) -> bool:
    return has_crashed(one, [one, *others])


@pytest.mark.parametrize(
    ("state", "status", "expected"),
    [
        ("live", None, False),
        ("exited", None, False),
        ("exited", ExitStatus(0, None), False),
        ("exited", ExitStatus(143, None), False),  # as a shell says that it was told to end
        ("exited", TERM, False),
        ("exited", ExitStatus(3, None), True),
        ("exited", KILL, True),
        ("died", None, True),
        ("died", ExitStatus(0, None), True),
    ],
)
def test_a_rank_that_no_rank_made(state, status, expected):
    assert crashed(rank(state, status), rank("live")) is expected


@pytest.mark.parametrize("parent", [rank("live", pid=PARENT), rank("died", pid=PARENT), None])
def test_a_child_of_a_rank_that_lives_on_may_end_as_its_parent_likes(parent):
    child = rank("died", parent=PARENT)
    others = [rank("live", pid=5)] + ([parent] if parent else [])
    is_own = parent is not None and parent.is_living
    assert crashed(child, *others) is not is_own


def test_a_child_that_took_part_in_collectives_is_a_rank():
    parent = rank("live", pid=PARENT)
    assert crashed(rank("died", parent=PARENT, has_groups=True), parent)
    assert crashed(rank("died", parent=PARENT, reached={"0": 1}), parent)


@pytest.mark.parametrize(("status", "expected"), [(KILL, False), (SEGV, True), (None, False)])
def test_no_parent_sends_a_fault(status, expected):
    parent = rank("live", pid=PARENT)
    assert crashed(rank("died", status, parent=PARENT), parent) is expected
    assert crashed(rank("died", status, parent=PARENT, oom=True), parent), "nor the OOM killer"


@pytest.mark.parametrize(
    ("statuses", "is_left", "seconds_later", "is_unclear"),
    [
        ((TERM,), False, 99, True),  # nobody is left: the whole job was told
        ((TERM,), True, 9, True),  # the others may be about to go
        ((TERM,), True, 11, False),
        ((TERM, None), False, 9, False),
        ((None,), True, 9, False),
        ((KILL,), False, 9, False),
    ],
)
def test_sigterm_is_no_crash_unless_other_ranks_were_left(
    statuses, is_left, seconds_later, is_unclear
):
    died = [
        rank("died", status, gone_ns=10**9, label=str(number), is_outlived=True)
        for number, status in enumerate(statuses)
    ]
    ranks = [*died, *([rank("live")] if is_left else [])]
    now_ns = (1 + seconds_later) * 10**9
    assert (_unclear(ranks, died[:1], died, now_ns) != "") is is_unclear


def stood(label: str, gone_seconds: int | None, last_event_seconds: int | None = None):
    gone_ns = None if gone_seconds is None else gone_seconds * 10**9
    last_event_ns = None if last_event_seconds is None else last_event_seconds * 10**9
    one = rank("died", SEGV, gone_ns=gone_ns, last_event_ns=last_event_ns)
    return replace(one, label=label, pid=7, step=3)


def test_the_evidence_has_the_last_record_and_later_deaths():
    first, later = stood("0", 50, 48), stood("1", 62)
    where, ending, order = _lines([first], [later], [first, later])
    assert where.endswith("of step 3, last record 2 s before the process was missing")
    assert ending == "rank 1 was killed by signal 11 (SIGSEGV)"
    assert order == "rank 1 died 12 s later"
    assert _lines([later], [first], [])[-1] == "rank 0 died 12 s before"
    for unknown in (stood("0", 50), stood("0", None, 48)):
        assert "last record" not in _lines([unknown], [], [])[0]
