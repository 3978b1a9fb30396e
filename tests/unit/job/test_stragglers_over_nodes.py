"""Stragglers between nodes: steps matched by number, waits by duration, no clock compared."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from nodes_scene import Hub, Node, stepped

from dfx_agent.facts.layout import DATA, PIPELINE, Layout, RankPosition
from dfx_agent.facts.steps import RoleSteps, SchedTimes
from dfx_agent.job.steps import by_duration


@pytest.fixture
def hub() -> Hub:
    return Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3), apart_seconds=-300.0))


def tell(hub: Hub, step: int, of_b: tuple[float, float], **known) -> None:
    """A step of 1 s in which ranks 0, 1 and 2 work 0.6 s."""
    usual = (0.6, 0.4)
    begin = 1e9 + step
    for name, ranks in (("node-a", {"0": usual, "1": usual}), ("node-b", {"2": usual, "3": of_b})):
        node = hub.nodes[name]
        reported = stepped(step, begin + node.apart_seconds, ranks)
        hub.tell(node.facts(step, steps=(replace(reported, num_ranks=2),), **known), step)


def test_the_slow_rank_of_the_other_node_is_named_with_it(hub):
    for step in range(1, 12):
        tell(hub, step, (0.95, 0.05))
    found = hub.verdict("straggler", 12)
    assert (found.state, found.ranks, found.stage) == ("found", ("3",), "backward")
    assert found.summary.startswith("Rank 3 on node-b makes the other ranks wait 0.35 s in every ")


def test_similar_ranks_are_clear(hub):
    for step in range(1, 12):
        tell(hub, step, (0.6, 0.4))
    assert hub.verdict("straggler", 12).state == "clear"


def test_a_step_reported_twice_is_counted_once(hub):
    for step in range(1, 6):
        tell(hub, step, (0.6, 0.4))
    again = [hub.nodes["node-b"].facts(6, steps=(stepped(s, 1e9 + s - 300.0, {"2": (0.6, 0.4)}),),
                                       is_full=True) for s in range(1, 6)]  # fmt: skip
    for facts in again:
        hub.tell(facts, 6)
    assert [row.step for row in hub.run(7).steps] == [1, 2, 3, 4, 5]


def test_a_document_that_is_missing_makes_the_hub_ask_for_all(hub):
    a = hub.nodes["node-a"]
    assert hub.tell(a.facts(0), 0)
    lost = a.facts(1, steps=(stepped(1, 1e9, {"0": (0.6, 0.4)}),))
    assert lost.number == 2
    assert not hub.tell(a.facts(2), 2)
    assert not hub.tell(a.facts(3), 3)
    assert hub.tell(a.facts(4, is_full=True), 4)
    assert hub.tell(a.facts(5), 5)


def test_a_document_that_comes_twice_is_passed_over(hub):
    a = hub.nodes["node-a"]
    facts = a.facts(0)
    assert hub.tell(facts, 0)
    assert hub.tell(facts, 1)


def test_transfer_is_what_the_last_rank_took():
    (steps,) = stepped(1, 0.0, {"0": (0.6, 0.4), "1": (0.95, 0.05)}).steps
    split = by_duration(steps.ranks)
    assert (split["0"].waited_seconds, split["0"].parts["transfer", ""]) == (0.35, 0.05)
    assert (split["1"].waited_seconds, split["1"].parts["transfer", ""]) == (0.0, 0.05)


def test_collectives_that_are_not_the_same_are_not_matched():
    (steps,) = stepped(1, 0.0, {"0": (0.6, 0.4), "1": (0.95, 0.05)}).steps
    other = {"0": steps.ranks["0"].groups["0"]._replace(latest=99)}
    ranks = {**steps.ranks, "1": replace(steps.ranks["1"], groups=other)}
    assert by_duration(ranks)["0"].waited_seconds == 0.4


def tell_pipeline(hub: Hub, step: int, seconds: dict[str, float]) -> None:
    """Rank 0 and 1 are the first stage, 2 and 3 the second; data place 0 is on node-a."""
    for place, (name, ranks) in enumerate((("node-a", ("0", "2")), ("node-b", ("1", "3")))):
        node = hub.nodes[name]
        entry = {rank: (seconds[rank], 1.0 - seconds[rank]) for rank in ranks}
        reported = stepped(step, 1e9 + step + node.apart_seconds, entry)
        coordinates = {rank: {PIPELINE: int(rank) // 2, DATA: place} for rank in ranks}
        layout = Layout({r: RankPosition(int(r), "", at) for r, at in coordinates.items()})
        hub.tell(node.facts(step, steps=(replace(reported, num_ranks=2, layout=layout),)), step)


def test_the_layout_is_of_all_nodes():
    hub = Hub(Node("node-a", (0, 2)), Node("node-b", (1, 3), apart_seconds=-300.0))
    for step in range(1, 12):
        tell_pipeline(hub, step, {"0": 0.4, "1": 0.4, "2": 0.8, "3": 0.8})
    clear = hub.verdict("straggler", 12)
    assert (clear.state, clear.ranks, clear.cause) == ("clear", (), "partition")
    for step in range(12, 30):
        tell_pipeline(hub, step, {"0": 0.98, "1": 0.4, "2": 0.8, "3": 0.8})
    found = hub.verdict("straggler", 30)
    assert (found.state, found.ranks) == ("found", ("0",))
    assert "than its 1 peer in pipeline stage 1 of 2" in found.summary


def test_a_slow_rank_on_busy_nodes_is_named_by_its_cpu_time(hub):
    """All ranks lack a CPU for most of the time; rank 3 is last, and computes 1.5 times as much."""
    chance = random.Random(0)
    for step in range(1, 41):
        cpu = [0.1 * (1.5 if rank == 3 else 1.0) * chance.uniform(0.97, 1.03) for rank in range(4)]
        work = [4 * seconds * chance.uniform(0.9, 1.1) for seconds in cpu]
        tell_busy(hub, step, cpu, work)
    found = hub.verdict("straggler", 41)
    assert (found.state, found.ranks) == ("found", ("3",))
    assert found.summary.startswith("Rank 3 on node-b is slow. It was last in ")
    assert "This machine has more runnable threads than CPUs" in found.summary


def tell_busy(hub: Hub, step: int, cpu: list[float], work: list[float]) -> None:
    for name, ranks in (("node-a", (0, 1)), ("node-b", (2, 3))):
        node = hub.nodes[name]
        split = {str(rank): (work[rank], 1.0 - work[rank]) for rank in ranks}
        (closed,) = stepped(step, 1e9 + step + node.apart_seconds, split).steps
        known = {
            label: replace(
                entry,
                busy_seconds=cpu[int(label)],
                processor=SchedTimes(int(cpu[int(label)] * 1e9), int(cpu[int(label)] * 3e9)),
            )
            for label, entry in closed.ranks.items()
        }
        reported = RoleSteps("trainer", (replace(closed, ranks=known),), 1.0, 2, 4)
        hub.tell(node.facts(step, steps=(reported,)), step)
