"""Ranks that wait for others to join are said within a minute, and a hang only when it is sure."""

from __future__ import annotations

from dataclasses import replace

from nodes_scene import Hub, Node

from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack

STORE = Frame("/lib/site-packages/torch/distributed/rendezvous.py", 180, "_create_c10d_store")
LOADS = Frame("/home/me/train.py", 8, "load_model")


def waiting(where: Frame) -> Hub:
    """Six of eight ranks, quiet since they began; node-c is joined and has nobody."""
    nodes = [
        Node("node-a", (0, 1, 2), world_size=8),
        Node("node-b", (3, 4, 5), world_size=8, apart_seconds=-300.0),
    ]
    stacks = ProcessStacks(
        "guest", 1, (ThreadStack("MainThread", 1, is_main=True, frames=(where,)),)
    )
    for node in nodes:
        for rank in node.ranks:
            node.stands(
                rank, 0, begin_ns=node.at(0), has_groups=False, reached={}, step=None, num_steps=0,
                step_durations=(), stages=(), stacks=stacks,
            )  # fmt: skip
    return Hub(*nodes)


def follow(hub: Hub, end: int) -> None:
    idle = Node("node-c", ())
    for second in range(0, end, 5):
        hub.tell(replace(idle.facts(second), run="", seats=(), ranks={}), second)
        hub.hear(second)
        hub.run(second)


def test_who_is_missing_is_said_within_a_minute():
    hub = waiting(STORE)
    follow(hub, 60)
    found = hub.verdict("hang", 58)
    assert found.state == "insufficient evidence"
    assert found.summary == (
        "the job waits in rendezvous for 55 s: 6 of 8 ranks are here; nothing from node-c"
    )


def test_it_is_a_hang_when_it_has_lasted():
    hub = waiting(STORE)
    follow(hub, 330)
    found = hub.verdict("hang", 326)
    assert (found.state, found.cause, found.ranks) == ("found", "rendezvous", ())
    assert hub.run(326).incidents[0].kind == "hang"


def test_a_job_that_loads_its_model_meanwhile_is_no_hang():
    hub = waiting(LOADS)
    follow(hub, 330)
    found = hub.verdict("hang", 326)
    assert found.state == "insufficient evidence"
    assert found.summary.startswith("the job has not begun for ")


def test_ranks_that_have_met_are_not_in_rendezvous():
    hub = Hub(Node("node-a", (0, 1, 2), world_size=8))
    follow(hub, 120)
    assert "rendezvous" not in hub.verdict("hang", 116).summary
