"""A hub that is told more than it can take: what it knows is old, and nothing is clear by that."""

from __future__ import annotations

from dataclasses import replace

from nodes_scene import HUB_SECONDS, Hub, Node, stepped

ALIKE = (0.6, 0.4)


def tell(hub: Hub, step: int, seconds: float) -> None:
    """Each node's step of that second comes at ``seconds``."""
    for node in hub.nodes.values():
        ranks = {str(rank): ALIKE for rank in node.ranks}
        reported = stepped(step, HUB_SECONDS + step + node.apart_seconds, ranks)
        hub.tell(node.facts(step, steps=(replace(reported, num_ranks=2),)), seconds)


def test_nothing_is_clear_by_what_came_late():
    hub = Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3), apart_seconds=-300.0))
    for step in range(1, 40):
        tell(hub, step, step)
    usual = hub.run(39.5).standing
    assert usual.state == "clear", usual
    for step in range(40, 44):
        tell(hub, step, step + 25)
    late = hub.run(68.5).standing
    assert late.state == "insufficient evidence"
    assert late.reason == "The nodes report 25.5 s late: they send more than the hub can process."
    tell(hub, 70, 70)
    assert hub.run(70.5).standing.state == "clear"
