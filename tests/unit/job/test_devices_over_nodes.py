"""What devices of other nodes reported and how they ran, in the verdicts on the whole job."""

from __future__ import annotations

from nodes_scene import HUB_SECONDS, Hub, Node

from dfx_agent.facts.run import Reported
from dfx_agent.facts.steps import DeviceState, RoleSteps


def hung() -> Hub:
    """Rank 3 on node-b does not arrive."""
    hub = Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3), apart_seconds=-300.0))
    hub.follow(0, 3)
    a, b = hub.nodes.values()
    for node, rank in ((a, 0), (a, 1), (b, 2)):
        node.waits(rank, 3, 41)
    b.stands(3, 3, stages=("backward",))
    return hub


def xid(seconds: float, apart_seconds: float, rank: str) -> Reported:
    """At that instant of the scene, by the clock of its node."""
    at = HUB_SECONDS + seconds + apart_seconds
    return Reported("nvidia:1", "XID 79", "", at, "node-b", (("trainer", rank),))


def test_an_xid_is_shown_with_the_hang_of_its_rank():
    hub = hung()
    hub.follow(3, 19)
    a, b = hub.nodes.values()
    hub.tell(a.facts(19), 19)
    hub.tell(b.facts(19, reported=(xid(2, -300.0, "3"),)), 19)
    assert hub.verdict("hang", 20).summary.endswith(" The device reported XID 79 on node-b GPU 1.")


def test_when_it_was_is_not_compared_by_the_clocks_of_nodes():
    hub = hung()
    hub.follow(3, 19)
    a, b = hub.nodes.values()
    hub.tell(a.facts(19, reported=(xid(-400, 1000.0, "0"),)), 19)
    hub.tell(b.facts(19), 19)
    assert "XID" not in " ".join(hub.verdict("hang", 20).evidence), "long before it hung"


def test_clocks_of_devices_reach_the_judge_of_the_whole_job():
    hub = Hub(Node("node-a", (0, 1)), Node("node-b", (2, 3)))
    for number, node in enumerate(hub.nodes.values()):
        states = {str(rank): DeviceState(("nvidia:0",), 1e9 + rank, 0.0) for rank in node.ranks}
        steps = (RoleSteps("trainer", (), None, 2, 4, devices=states),)
        hub.tell(node.facts(number, steps=steps), number)
    (job,) = hub.folds._jobs
    fold = job.fold
    clocks = {r: state.clock_hertz for r, state in fold.role_steps("trainer").devices.items()}
    assert clocks == {str(rank): 1e9 + rank for rank in range(4)}
