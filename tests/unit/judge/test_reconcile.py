"""Verdicts of one run do not contradict each other; the one that explains the others is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfx_agent.catalogue.alerts.declared.progress import LONG_WAIT
from dfx_agent.judge.reconcile import EXPLAINED, STUCK, Pace, paces, reconciled
from dfx_agent.snapshot import Verdict

SLOW = Verdict(
    "straggler", "found", "trainer", "Rank 1 costs 0.05 s of every step.", ("1",),
    lost_seconds=0.05, since_seconds=900.0,
)  # fmt: skip
STUCK_RANK = Verdict(
    "hang", "found", "trainer", "Rank 1 is stuck in its data loader for 12 s.", ("1",),
    since_seconds=1000.0,
)  # fmt: skip
WAITS = Verdict("hang", "clear", "trainer", "Rank 0 waits for 11 s of at most 300 s.")
NAMELESS = Verdict(
    "hang", "insufficient evidence", "rollout", "Nobody can be named.", cause=LONG_WAIT
)


def by_kind(verdicts):
    return {(verdict.kind, verdict.role): verdict for verdict in verdicts}


def test_a_straggler_of_before_is_no_finding_in_a_job_that_is_stuck():
    reported = by_kind(reconciled([SLOW, STUCK_RANK], {}))
    slow, hang = reported["straggler", "trainer"], reported["hang", "trainer"]
    assert (slow.state, slow.ranks, slow.lost_seconds) == ("insufficient evidence", (), None)
    assert slow.summary == (
        "The job completes no steps now, so none are compared. Before that: "
        "Rank 1 costs 0.05 s of every step."
    )
    assert hang.evidence == ("before that: Rank 1 costs 0.05 s of every step.",)
    assert (hang.state, hang.summary) == ("found", STUCK_RANK.summary)


def test_nothing_is_clear_by_steps_of_long_ago():
    still = {"trainer": Pace(900.0, 87.0, 0.1)}
    reported = by_kind(reconciled([SLOW, WAITS], still))
    assert reported["straggler", "trainer"].state == "insufficient evidence"
    hang = reported["hang", "trainer"]
    assert (hang.state, hang.cause) == ("insufficient evidence", STUCK)
    assert hang.summary == (
        "No step has been completed for 87 s; a step usually takes 0.1 s. "
        "Rank 0 waits for 11 s of at most 300 s."
    )
    calm = replace(SLOW, state="clear", summary="No rank is late.")
    (only,) = reconciled([calm], still)
    assert only.summary == "No step has been completed for 87 s; a step usually takes 0.1 s."


def test_advice_about_slow_ranks_is_not_given_to_a_job_that_is_stuck():
    busy = replace(SLOW, state="insufficient evidence", summary="Busy host.", ranks=())
    busy = replace(busy, action="Run fewer processes on this machine.")
    pace = {"trainer": Pace(900.0, 87.0, 0.1)}
    straggler = by_kind(reconciled([busy, STUCK_RANK], pace))["straggler", "trainer"]
    assert straggler.summary == "The job completes no steps now, so there are none to compare."
    assert straggler.action == ""
    # without a finding that explains it, the missing steps are what is known
    (only,) = reconciled([busy], pace)
    assert only.summary == "No step has been completed for 87 s; a step usually takes 0.1 s."
    assert only.action == ""


def test_another_role_and_a_job_that_makes_steps_are_as_they_were():
    assert reconciled([SLOW, WAITS], {"rollout": Pace(900.0, 87.0, 0.1)}) == (SLOW, WAITS)


@pytest.mark.parametrize("state", ["found", "insufficient evidence"])
def test_an_unknown_wait_is_explained_by_a_peer_that_knows(state):
    reported = by_kind(reconciled([replace(NAMELESS, state=state), STUCK_RANK], {}))
    waits = reported["hang", "rollout"]
    assert (waits.state, waits.cause) == ("insufficient evidence", EXPLAINED)
    assert waits.summary.endswith("finding: Rank 1 is stuck in its data loader for 12 s.")
    assert waits.evidence[0] == "Nobody can be named."


def test_where_nobody_names_a_rank_a_long_wait_stays_one():
    nameless = replace(STUCK_RANK, ranks=(), summary="Nothing moves.")
    assert reconciled([NAMELESS, nameless], {}) == (NAMELESS, nameless)


def test_a_crash_of_another_role_does_not_silence_steps_that_began_after_it():
    crash = Verdict(
        "crash", "found", "reward", "Rank 0 failed with exit code 1.", ("0",), since_seconds=1000.0
    )
    moves = {"trainer": Pace(1001.0, 0.5, 1.0)}
    assert reconciled([SLOW, crash], moves)[0] == SLOW
    stopped = {"trainer": Pace(999.0, 0.5, 1.0)}
    assert reconciled([SLOW, crash], stopped)[0].state == "insufficient evidence"


@pytest.mark.parametrize(
    ("ends", "now", "pace", "is_still"),
    [
        ((0.1, 0.2, 0.3), 31.0, (0.2, 30.7, 0.1), True),
        ((0.1, 0.2, 0.3), 29.0, (0.2, 28.7, 0.1), False),
        ((10.0, 20.0, 30.0), 125.0, (20.0, 95.0, 10.0), False),
        ((10.0, 20.0, 30.0), 131.0, (20.0, 101.0, 10.0), True),
    ],
)
def test_still_is_who_makes_no_step_for_ten_times_what_one_takes(ends, now, pace, is_still):
    first = ends[0]
    (found,) = paces({"a": [(end - first, end) for end in ends], "new": []}, now).values()
    assert tuple(found) == pytest.approx(pace)
    assert found.is_still == is_still
