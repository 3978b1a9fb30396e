"""A node whose host does not answer is lost if its ranks were needed, unless they go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nodes_scene import Hub, Node

from dfx_agent.facts.rank import ExitStatus
from dfx_agent.job.roster import Peers, Presence, is_lost
from dfx_agent.snapshot import Verdict

GONE = Presence("node-b", 19.0, ("2", "3"), reach="no answer")
WAITING = Peers(("0", "1"), 19.0)


@pytest.fixture
def hub() -> Hub:
    hub = Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3), apart_seconds=-300.0))
    hub.follow(0, 4)
    return hub


def lost(hub: Hub, seconds: float) -> Verdict:
    hub.folds.probed("node-b", "no answer")
    return hub.verdict("crash", seconds)


def test_a_node_that_others_wait_for_is_lost_within_20_seconds(hub):
    for rank in (0, 1):
        hub.nodes["node-a"].waits(rank, 4, 41)
    hub.follow(4, 20, without="node-b")
    found = lost(hub, 20)
    assert (found.state, found.cause, found.ranks) == ("found", "node lost", ("2", "3"))
    assert found.summary == (
        "Node node-b is lost with ranks 2, 3: no report for 17 s, and its host does not answer. "
        "Ranks 0, 1 wait for it."
    )
    assert found.action.startswith("Check node node-b and its network.")
    assert found.since_seconds == pytest.approx(hub.at(3)[1], abs=1.5)


def test_what_failed_after_the_node_was_lost_is_explained_by_it(hub):
    hub.follow(4, 6, without="node-b")
    a = hub.nodes["node-a"]
    gone_ns = a.at(6)
    a.waits(1, 4, 41)
    failed = ExitStatus(1, None)
    a.stands(0, 6, state="exited", gone_ns=gone_ns, alive_ns=gone_ns, exit_status=failed)
    hub.follow(6, 21, without="node-b")
    assert lost(hub, 21).cause == "node lost"


def test_a_crash_before_it_stays_the_crash(hub):
    a = hub.nodes["node-a"]
    killed = ExitStatus(None, 9)
    a.stands(
        0, 4, state="died", gone_ns=a.at(4), alive_ns=a.at(3), exit_status=killed,
        is_outlived=True,
    )  # fmt: skip
    a.waits(1, 4, 41)
    hub.follow(5, 8)
    hub.follow(8, 26, without="node-b")
    assert lost(hub, 26).ranks == ("0",)


def test_a_hub_that_hears_nobody_is_cut_off_itself(hub):
    for node in ("node-a", "node-b"):
        hub.folds.probed(node, "no answer")
    assert not [v for v in hub.run(60).verdicts if v.state == "found"]


def test_a_host_that_answers_is_not_lost():
    assert is_lost(GONE, WAITING)
    for reach in ("answers", "refused", None):
        assert not is_lost(replace(GONE, reach=reach), WAITING)
    assert not is_lost(replace(GONE, has_left=True), WAITING)
    assert not is_lost(replace(GONE, labels=()), WAITING), "it has no rank of the job"
    assert not is_lost(replace(GONE, silent_seconds=9.0), WAITING)


def test_nobody_waits_during_a_long_rollout_so_it_takes_longer():
    assert not is_lost(GONE, Peers())
    assert is_lost(replace(GONE, silent_seconds=61.0), Peers())


def test_a_node_whose_ranks_still_took_part_is_cut_off_from_the_hub_alone():
    cut_off = replace(GONE, silent_seconds=300.0, has_progressed=True)
    assert not is_lost(cut_off, Peers())
    assert not is_lost(cut_off, Peers(("0",), 12.0)), "rank 0 waits as in any step"
    assert is_lost(cut_off, Peers(("0",), 31.0))


def test_what_others_did_right_after_the_last_report_shows_nothing(hub):
    """The node lived a second longer than its last report says: many collectives fit into that."""
    a = hub.nodes["node-a"]
    for rank in (0, 1):
        a.waits(rank, 4, 90)
        a.states[rank] = replace(a.states[rank], group_moved_ns={"0": a.at(4)})
    hub.follow(4, 20, without="node-b")
    assert lost(hub, 20).state == "found"
