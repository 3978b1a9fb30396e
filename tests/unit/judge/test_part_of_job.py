"""Part of a job is not the job: what is clear here may not be so elsewhere."""

from __future__ import annotations

import pytest

from dfx_agent.facts.seat import Seat
from dfx_agent.judge.part_of_job import crashes_of_this_node, only_what_is_seen
from dfx_agent.snapshot import Verdict


def seat(rank, world_size, role="trainer", *, attempt=0, is_living=True):
    state = "live" if is_living else "exited"
    return Seat(
        role=role, label=str(rank), rank=rank, local_rank=rank, world_size=world_size,
        attempt=attempt, state=state,
    )  # fmt: skip


def judged(seats, kind="hang", state="clear", role="trainer"):
    (verdict,) = only_what_is_seen([Verdict(kind, state, role, "all is well")], seats)
    return verdict


THIS_NODE_ONLY = "Of this node only: "
HALF = [seat(rank, 8) for rank in range(4)]


@pytest.mark.parametrize("kind", ["hang", "straggler", "crash"])
def test_where_half_of_the_ranks_is_seen_nothing_about_all_of_them_is_clear(kind):
    verdict = judged(HALF, kind)
    assert (verdict.state, verdict.cause) == ("insufficient evidence", "part of the job")
    assert verdict.summary == THIS_NODE_ONLY + "4 of 8 ranks are observed."
    assert verdict.evidence == ("of these: all is well",)


def test_a_finding_stays_and_so_does_another_reason_and_what_is_reported_here():
    assert judged(HALF, state="found").state == "found"
    assert judged(HALF, state="insufficient evidence").summary == "all is well"
    assert judged(HALF, "divergence").state == "clear"


@pytest.mark.parametrize(
    "seats",
    [
        [seat(rank, 4) for rank in range(4)],
        [seat(rank, 4, is_living=rank > 1) for rank in range(4)],  # two have ended in order
        [seat(-1, -1)],  # knows neither its rank nor the world
        [seat(0, 2), seat(1, 2), seat(0, 8, "critic")],  # roles with worlds of their own
        # one world of torchrun over two roles
        [*(seat(r, 8) for r in range(4)), *(seat(r, 8, "critic") for r in range(4, 8))],
        # an elastic restart with fewer ranks
        [*(seat(r, 8, is_living=False) for r in range(4)),
         *(seat(r, 2, attempt=1) for r in range(2))],
    ],
)  # fmt: skip
def test_a_role_that_is_seen_whole_stays_clear(seats):
    assert judged(seats).state == "clear"


def test_ranks_that_have_not_come_yet_are_missing_and_two_with_one_number_are_one():
    assert (
        judged([seat(r, 4) for r in range(3)]).summary
        == THIS_NODE_ONLY + "3 of 4 ranks are observed."
    )
    assert judged([seat(0, 2), seat(0, 2)]).summary == THIS_NODE_ONLY + "1 of 2 ranks are observed."
    critic = [seat(0, 2), seat(1, 2), seat(0, 8, "critic")]
    assert judged(critic, role="critic").summary == THIS_NODE_ONLY + "1 of 8 ranks are observed."


def test_a_rank_that_does_not_know_its_number_is_one_more():
    assert (
        judged([seat(0, 4), seat(-1, 4)]).summary == THIS_NODE_ONLY + "2 of 4 ranks are observed."
    )
    assert judged([seat(0, 2), seat(-1, 2)]).state == "clear"


def test_a_crash_of_a_part_says_that_another_node_may_have_died_first():
    found = Verdict("crash", "found", "trainer", "Rank 1 failed with exit code 1.", ("1",))
    seats = [seat(rank, 4) for rank in range(2)]
    (verdict,) = crashes_of_this_node([found], seats)
    assert verdict.summary == (
        "Rank 1 failed with exit code 1. This is of one node only: 2 of 4 ranks are observed."
    )
    assert "other nodes first" in verdict.action
    assert crashes_of_this_node([found], [seat(rank, 2) for rank in range(2)]) == (found,)
