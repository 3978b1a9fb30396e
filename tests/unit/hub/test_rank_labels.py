"""Ranks that two nodes claim, and jobs of one name: both are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nodes_scene import Hub, Node


def test_a_rank_that_two_nodes_claim_is_shown_twice_and_said():
    hub = Hub(Node("node-a", (0, 1)), Node("node-b", (1, 2)))
    hub.follow(0, 3)
    run = hub.run(3)
    assert [(row.rank, row.node) for row in run.ranks] == [
        ("0", "node-a"), ("1", "node-a"), ("1@node-b", "node-b"), ("2", "node-b"),
    ]  # fmt: skip
    assert "Rank 1 is claimed by node-a and node-b." in hub.verdict("hang", 3).summary


def test_a_rank_that_moved_to_another_node_is_shown_there():
    a, b = Node("node-a", (0, 1)), Node("node-b", (2, 3))
    hub = Hub(a, b)
    hub.follow(0, 3)
    a.stands(1, 3, state="died", gone_ns=a.at(3))
    hub.hear(4)
    b.ranks = (2, 3, 1)
    hub.follow(5, 8)
    assert [(row.rank, row.node) for row in hub.run(8).ranks if row.rank.startswith("1")] == [
        ("1", "node-b")
    ]


def test_who_claims_a_rank_and_is_silent_then_leaves_the_job_to_be_judged():
    """Its process may be gone with its agent: the others' rank still takes part."""
    hub = Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3)), Node("node-c", (3,)))
    hub.follow(0, 3)
    assert "Rank 3 is claimed by node-b and node-c" in hub.verdict("hang", 3).summary
    hub.follow(3, 20, without="node-c")
    assert hub.verdict("hang", 20).state == "clear"
    hub.follow(20, 22)
    assert "Rank 3 is claimed by node-b and node-c" in hub.verdict("hang", 22).summary


def test_two_jobs_of_one_name_differ_by_their_rendezvous():
    hub = Hub(
        Node("node-a", (0, 1), world_size=2),
        Node("node-b", (0, 1), world_size=2, rendezvous="10.0.0.2:29500"),
    )
    hub.follow(0, 3)
    assert [(row.run, len(row.ranks)) for row in hub.folds.snapshot(*hub.at(3)).runs] == [
        ("r", 2), ("r (10.0.0.2:29500)", 2),
    ]  # fmt: skip
    assert {v.state for v in hub.run(3).verdicts if v.kind == "hang"} == {"clear"}


def test_two_jobs_of_one_name_are_called_the_same_by_the_next_hub():
    """Else their alerts would be told a second time, under each other's name."""
    a = Node("node-a", (0, 1), world_size=2)
    b = Node("node-b", (0, 1), world_size=2, rendezvous="10.0.0.2:29500")
    before, after = Hub(a, b), Hub(b, a)
    before.hear(0)
    called = {name: before.folds.called(name, "r") for name in ("node-a", "node-b")}
    assert called == {"node-a": "r", "node-b": "r (10.0.0.2:29500)"}
    for node in (b, a):
        after.tell(replace(node.facts(1), called=called[node.name]), 1)
    assert {name: after.folds.called(name, "r") for name in called} == called
    assert after.folds.called("node-c", "r") == "r"


def test_nodes_that_do_not_know_where_they_meet_are_one_job():
    hub = Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3), rendezvous=""))
    hub.follow(0, 3)
    assert len(hub.run(3).ranks) == 4


def test_a_run_that_a_node_no_longer_reports_is_removed_there():
    hub = Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3)))
    hub.follow(0, 3)
    other = Node("node-b", (0,), world_size=1, run="other")
    for second in range(3, 30):
        hub.hear(second, without="node-b")
        hub.tell(other.facts(second), second)
    assert {row.node for row in hub.run(30).ranks} == {"node-a"}


def test_whose_documents_are_refused_is_named():
    hub = Hub()
    with pytest.raises(ValueError, match="it is not JSON"):
        hub.folds.receive(b"?", "node-b")
    (problem,) = hub.folds.snapshot().agent.problems
    assert problem.message.startswith("documents of node-b that were refused: 1, the last: ")
