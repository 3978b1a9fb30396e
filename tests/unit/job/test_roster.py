"""Never joined, silent, cut off, dead, gone with its node: five sentences, and nothing clear."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from nodes_scene import Hub, Node

from dfx_agent.facts.rank import ExitStatus


@pytest.fixture
def hub() -> Hub:
    hub = Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3), apart_seconds=-300.0))
    hub.follow(0, 4)
    return hub


def unsure(hub: Hub, seconds: float) -> str:
    """What is said of the ranks; the same by each verdict on them."""
    found = [hub.verdict(kind, seconds) for kind in ("hang", "crash")]
    assert {verdict.state for verdict in found} == {"insufficient evidence"}
    return found[0].summary


def test_with_all_ranks_here_it_is_clear(hub):
    assert hub.verdict("hang", 4).state == "clear"


def test_ranks_that_never_joined_are_numbered():
    hub = Hub(Node("node-a", (0, 1), world_size=8), Node("node-b", (2, 3), world_size=8))
    hub.follow(0, 4)
    assert "4 of 8 ranks have started; ranks 4, 5, 6, 7 never joined." in unsure(hub, 4)


def test_an_absurd_world_size_costs_nothing():
    hub = Hub(Node("node-a", (0, 1), world_size=2**31 - 1))
    hub.follow(0, 4)
    tracemalloc.start()
    summary = unsure(hub, 4)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    never = "ranks 2, 3, 4, 5, 6, 7, 8, 9 and 2147483637 more never joined."
    assert f"2 of 2147483647 ranks have started; {never}" in summary
    assert peak_bytes < 10e6


def test_a_node_that_is_there_with_nobody_is_named():
    hub = Hub(Node("node-a", (0, 1), world_size=4))
    idle = Node("node-c", ()).facts(0)
    hub.tell(replace(idle, run="", seats=(), ranks={}), 0)
    hub.follow(0, 4)
    assert "2 of 4 ranks have started; none of node-c." in unsure(hub, 4)


def test_a_silent_agent_is_no_dead_rank(hub):
    hub.follow(4, 30, without="node-b")
    result = unsure(hub, 30)
    assert "The agent of node-b has sent nothing for 27" in result
    assert "whether ranks 2, 3 run is not known" in result
    assert "never joined" not in result
    assert hub.verdict("crash", 30).ranks == ()


def test_ranks_of_a_silent_agent_that_take_part_still_run(hub):
    hub.follow(4, 25, without="node-b")
    a = hub.nodes["node-a"]
    for rank in (0, 1):
        a.stands(rank, 29, reached={"0": 50})
    hub.hear(30, without="node-b")
    assert "ranks 2, 3 still take part in collectives" in unsure(hub, 30)


def test_a_silent_host_with_running_ranks_is_cut_off(hub):
    hub.follow(4, 25, without="node-b")
    for rank in (0, 1):
        hub.nodes["node-a"].stands(rank, 29, reached={"0": 50})
    hub.hear(30, without="node-b")
    hub.folds.probed("node-b", "no answer")
    assert "This hub has had no connection to node-b for " in unsure(hub, 30)


def test_a_host_that_does_not_answer_may_be_gone(hub):
    hub.follow(4, 24, without="node-b")
    hub.folds.probed("node-b", "no answer")
    result = unsure(hub, 24)
    assert "node-b has been gone, or without network, for " in result
    assert "neither its host nor ranks 2, 3 respond." in result


def test_an_agent_that_ended_in_order_says_so(hub):
    hub.tell(hub.nodes["node-b"].facts(4, is_last=True), 4)
    hub.hear(5, without="node-b")
    assert "The agent of node-b has ended" in unsure(hub, 5)


def test_a_dead_process_is_a_crash_with_its_node(hub):
    b = hub.nodes["node-b"]
    gone_ns = b.at(4)
    b.stands(
        3, 4, state="died", gone_ns=gone_ns, alive_ns=gone_ns - 10**8,
        exit_status=ExitStatus(None, 9), is_outlived=True,
    )  # fmt: skip
    hub.follow(5, 8)
    found = hub.verdict("crash", 8)
    assert (found.state, found.ranks) == ("found", ("3",))
    assert found.summary.startswith("Rank 3 on node-b was killed by signal 9 (SIGKILL)")


def test_who_died_stays_known_when_the_node_says_goodbye(hub):
    """Its launcher ends with the rank; others end a little later, because of it."""
    a, b = hub.nodes.values()
    gone_ns = b.at(4)
    b.stands(
        3, 4, state="died", gone_ns=gone_ns, alive_ns=gone_ns - 10**8,
        exit_status=ExitStatus(None, 9), is_outlived=True,
    )  # fmt: skip
    hub.hear(5)
    hub.tell(b.facts(6, is_last=True), 6)
    for rank in (0, 1):
        gone_ns = a.at(6)
        a.stands(
            rank, 6, state="died", gone_ns=gone_ns, alive_ns=gone_ns - 10**8,
            exit_status=ExitStatus(1, None),
        )  # fmt: skip
    for second in (7, 8):
        hub.hear(second, without="node-b")
        assert hub.verdict("crash", second).ranks == ("3",)
    hub.tell(a.facts(9, is_last=True), 9)
    assert hub.verdict("crash", 10).ranks == ("3",)


def test_a_node_that_comes_back_is_judged_again(hub):
    hub.follow(4, 30, without="node-b")
    hub.follow(30, 33)
    assert hub.verdict("hang", 33).state == "clear"


def test_a_document_that_comes_late_is_as_old_as_it_is(hub):
    """Told before a cut, it arrives after it: nothing has stood for longer by that."""
    late = [hub.nodes["node-b"].facts(second) for second in range(4, 9)]
    hub.follow(4, 12, without="node-b")
    for facts in late:
        hub.tell(facts, 12)
    hub.follow(12, 14)
    (rank,) = (row for row in hub.run(14).ranks if row.rank == "2")
    assert rank.state == "live"
    (node,) = [n for j in hub.folds._jobs for n in j.fold.nodes.values() if n.node == "node-b"]
    assert abs(node.as_of_ns - hub.at(13)[0]) < 10**6
