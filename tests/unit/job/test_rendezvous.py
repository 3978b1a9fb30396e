"""Whom a job waits for to join is said within a minute, and is a hang only when it is sure."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from nodes_scene import HUB_SECONDS, Hub, Node

from dfx_agent.facts.seat import Launch
from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack
from dfx_agent.snapshot import Verdict

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
        "The ranks have waited in rendezvous for 55 s. 6 of 8 ranks have started; none of node-c."
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
    assert found.summary.startswith("The job has not begun for ")


def test_ranks_that_have_met_are_not_in_rendezvous():
    hub = Hub(Node("node-a", (0, 1, 2), world_size=8))
    follow(hub, 120)
    assert "rendezvous" not in hub.verdict("hang", 116).summary


WAITS = "The torchrun launcher has waited for other nodes for 55 s:"


def torchrun(*node_ranks: int, idle: bool = True, num_nodes: int = 3):
    """A hub that torchrun on these nodes reports to; the last one has nothing but an agent."""
    hub, nodes = Hub(), [Node("abc"[n], (), apart_seconds=-300.0 * n) for n in node_ranks]

    def tell(second: int) -> None:
        for rank, node in zip(node_ranks, nodes, strict=True):
            launch = Launch(
                run="r",
                num_nodes=num_nodes,
                node_rank=rank,
                meets_at="a:29500",
                begin_ns=node.at(0),
            )
            facts = replace(node.facts(second), run="", seats=(), ranks={}, launch=launch)
            hub.tell(facts, second)
        if idle:
            hub.tell(replace(Node("c", ()).facts(second), run="", seats=(), ranks={}), second)

    return hub, tell


def said(hub: Hub, tell, seconds: int) -> Verdict | None:
    """Of the only run, after so long."""
    for second in range(0, seconds + 1, 5):
        tell(second)
        (run,) = hub.folds.snapshot(*hub.at(second)).runs
    assert (run.run, run.ranks, run.begin_seconds) == ("r", (), pytest.approx(HUB_SECONDS))
    return next((v for v in run.verdicts if v.kind == "hang"), None)


@pytest.mark.parametrize(
    ("node_ranks", "idle", "words"),
    [
        ((0, 1), True, f"{WAITS} 2 of 3 started, c did not."),
        ((0,), False, f"{WAITS} 1 of 3 started, node ranks 1, 2 did not."),
        (
            (0, 1, 2),
            False,
            "The torchrun launcher runs on a, b, c, and no rank has appeared for 55 s.",
        ),
    ],
    ids=["idle", "never came", "all"],
)
def test_nodes_that_torchrun_waits_for_are_said_within_a_minute(node_ranks, idle, words):
    hub, report = torchrun(*node_ranks, idle=idle)
    assert said(hub, report, 40) is None
    found = said(hub, report, 55)
    assert (found.state, found.summary) == ("insufficient evidence", words)
    assert found.evidence[0] == "torchrun on a (node rank 0) meets at a:29500"


def test_an_absurd_number_of_nodes_costs_nothing():
    hub, report = torchrun(0, idle=False, num_nodes=2**31 - 1)
    tracemalloc.start()
    found = said(hub, report, 55)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    absent = "node ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2147483638 more did not"
    assert found.summary == f"{WAITS} 1 of 2147483647 started, {absent}."
    assert peak_bytes < 10e6


def test_nodes_that_never_come_are_a_hang():
    hub, report = torchrun(0, 1)
    found = said(hub, report, 305)
    assert (found.state, found.cause) == ("found", "rendezvous")
    (incident,) = hub.run(305).incidents
    assert incident.kind == "hang"
    assert incident.action.startswith("Start the missing processes")


def test_ranks_take_the_place_of_their_launcher():
    hub, report = torchrun(0, 1)
    assert said(hub, report, 55) is not None
    nodes = [Node("a", (0, 1), rendezvous="a:1"), Node("b", (2, 3), rendezvous="a:1")]
    other = Node("d", (0,), world_size=1, rendezvous="d:1")
    for node in (*nodes, other):
        hub.tell(node.facts(56), 56)
    runs = hub.folds.snapshot(*hub.at(57)).runs
    assert {run.run: len(run.ranks) for run in runs} == {"r": 4, "r (d:1)": 1}
    assert hub.verdict("hang", 58).state == "clear"


def test_a_launcher_that_ends_leaves_nothing():
    hub, report = torchrun(0)
    report(0)
    assert len(hub.folds.snapshot(*hub.at(1)).runs) == 1
    hub.tell(replace(Node("a", (), number=1).facts(2), run="", seats=(), ranks={}, is_last=True), 2)
    hub.folds.snapshot(*hub.at(3))
    assert hub.folds.snapshot(*hub.at(4)).runs == ()
