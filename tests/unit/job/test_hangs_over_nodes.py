"""Hangs between nodes: who did not arrive, by numbers and durations, on clocks far apart."""

from __future__ import annotations

import pytest
from nodes_scene import Hub, Node


@pytest.fixture
def hub() -> Hub:
    return Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3), apart_seconds=-300.0))


def test_a_rank_that_makes_progress_does_not_hang(hub):
    hub.follow(0, 3)
    assert (hub.verdict("hang", 3).state, hub.verdict("crash", 3).state) == ("clear", "clear")


def test_the_rank_that_never_arrives_is_named_with_its_node(hub):
    hub.follow(0, 3)
    a, b = hub.nodes.values()
    for rank in (0, 1):
        a.waits(rank, 3, 41)
    b.waits(2, 3, 41)
    b.stands(3, 3, stages=("backward",))
    hub.follow(3, 20)
    found = hub.verdict("hang", 20)
    assert (found.state, found.ranks, found.cause) == ("found", ("3",), "stuck")
    assert found.summary.startswith("Rank 3 on node-b has been stuck in backward")
    assert "rank 3 on node-b: last collective of group 0 is #40, the others are in #41" in (
        found.evidence
    )


def test_a_stopped_rank_on_the_other_node(hub):
    hub.follow(0, 3)
    a, b = hub.nodes.values()
    for rank in (0, 1):
        a.waits(rank, 3, 41)
    b.waits(2, 3, 41)
    b.stands(3, 3, is_stopped=True)
    hub.follow(3, 17)
    found = hub.verdict("hang", 17)
    assert (found.state, found.ranks, found.cause) == ("found", ("3",), "stopped")


def test_collectives_that_do_not_match_over_nodes(hub):
    hub.follow(0, 3)
    a, b = hub.nodes.values()
    for rank in (0, 1):
        a.waits(rank, 3, 41)
    b.waits(2, 3, 41)
    b.waits(3, 3, 41, "all_gather")
    hub.follow(3, 40)
    found = hub.verdict("hang", 40)
    assert (found.state, found.ranks, found.cause) == ("found", ("3",), "mismatched collectives")
    assert "on node-b waits in all_gather" in found.summary
