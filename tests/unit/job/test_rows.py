"""What a hub shows of a job, of what its nodes tell: curves, memory, places, the bottleneck."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nodes_scene import HUB_SECONDS, Hub, Node

from dfx_agent.facts.layout import Layout, RankPosition
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.facts.steps import RankStep, RoleSteps, Step
from dfx_agent.snapshot import DeviceMemory, EngineFacts, HostMemory, Moments

MIB = 2**20


def nodes() -> tuple[Node, Node]:
    return Node("node-a", (0, 1)), Node("node-b", (2, 3), apart_seconds=-300.0)


def loss(node: Node, rank: int, values: dict[int, float], at: float = 1.0) -> ReportedScalars:
    reported = tuple(
        ScalarRecord("torch/loss", value, step, node.at(at)) for step, value in values.items()
    )
    offset = int((HUB_SECONDS + at + node.apart_seconds) * 1e9) - node.at(at)
    return ReportedScalars(node.seat(rank).id, "", reported, offset)


def test_curves_are_means_over_the_ranks_of_all_nodes():
    one, two = nodes()
    hub = Hub(one, two)
    hub.tell(one.facts(1, scalars=(loss(one, 0, {1: 4.0, 2: 2.0}),)), 1)
    hub.tell(two.facts(1, scalars=(loss(two, 2, {1: 2.0, 2: 1.0}),)), 1)
    (row,) = hub.run(2).scalars
    assert (row.key, row.metric, row.step) == ("torch/loss", "dfx_loss", 2)
    assert row.moments == Moments(2, 3.0, 1.0, 2.0)
    assert row.time_seconds == pytest.approx(HUB_SECONDS + 1, abs=0.01)
    (history,) = hub.folds.scalar_history("r", ())
    assert (history.steps, history.values) == ((1, 2), (3.0, 1.5))
    assert hub.folds.scalar_history("r", ("other",)) == []
    with pytest.raises(KeyError):
        hub.folds.scalar_history("no such run", ())


def test_a_node_may_be_some_steps_behind():
    one, two = nodes()
    hub = Hub(one, two)
    hub.tell(one.facts(1, scalars=(loss(one, 0, dict.fromkeys(range(1, 21), 4.0)),)), 1)
    hub.tell(two.facts(1, scalars=(loss(two, 2, dict.fromkeys(range(1, 21), 2.0)),)), 1)
    (history,) = hub.folds.scalar_history("r", ("torch/loss",))
    assert set(history.values) == {3.0}
    assert hub.run(2).num_stale_scalars == 0


def test_memory_is_shown_where_it_is_reported():
    one, two = nodes()
    totals = RankTotals(
        process=two.seat(3).id,
        host_memory=HostMemory(116.0 * MIB, slope_bytes_per_step=1.0 * MIB),
        devices=(DeviceMemory("cuda:0", reserved_bytes=60.0 * 2**30),),
    )
    hub = Hub(one, two)
    hub.tell(one.facts(1), 1)
    hub.tell(two.facts(1, totals=(totals,)), 1)
    ranks = {row.rank: row for row in hub.run(2).ranks}
    assert ranks["3"].host_memory.anonymous_bytes == 116 * MIB
    assert ranks["3"].host_memory.slope_bytes_per_step == MIB
    (shown,) = ranks["3"].devices
    assert (shown.device, shown.reserved_bytes) == ("cuda:0", 60.0 * 2**30)
    assert shown.allocated_bytes is None, "nobody tells it"
    assert (ranks["2"].host_memory, ranks["2"].devices) == (None, ())


def test_ranks_have_their_places():
    one, two = nodes()
    hub = Hub(one, two)
    for node in (one, two):
        places = {
            str(rank): RankPosition(
                rank, node.name, {"pipeline": rank // 2, "data": rank % 2, "tensor": 0}
            )
            for rank in node.ranks
        }
        reported = RoleSteps("trainer", (), 1.0, 2, 4, Layout(places))
        hub.tell(node.facts(1, steps=(reported,)), 1)
    ranks = {row.rank: row.place for row in hub.run(2).ranks}
    assert ranks["0"] == {"data": 0, "pipeline": 0}
    assert ranks["3"] == {"data": 1, "pipeline": 1}, "there is one tensor place: it tells nothing"


def step(number: int, ranks: tuple[int, ...], rollout: float, train: float) -> Step:
    parts = {("stage", "rollout"): rollout, ("stage", "actor_update"): train, ("idle", ""): 0.0}
    wall = rollout + train
    reported = {str(rank): RankStep(wall, 0.0, parts, {"response": 100.0}) for rank in ranks}
    return Step(number, HUB_SECONDS + number * wall, 0, reported)


@pytest.mark.parametrize(
    ("rollout", "train", "summary"),
    [
        (3.0, 1.0, "A step takes 4 s: 75 % rollout, 25 % update."),
        (0.4, 3.6, "A step takes 4 s: 90 % update, 10 % rollout."),
    ],
)
def test_where_a_step_goes_is_said(rollout, train, summary):
    one, two = nodes()
    hub = Hub(one, two)
    for number in range(1, 9):
        seconds = 4.0 * (number + 1)
        for node in (one, two):
            begin = node.apart_seconds
            reported = step(number, tuple(node.ranks), rollout, train)
            reported = replace(reported, begin_seconds=reported.begin_seconds + begin)
            hub.tell(
                node.facts(seconds, steps=(RoleSteps("trainer", (reported,), 1.0, 2, 4),)), seconds
            )
        hub.run(seconds)
    verdict = hub.run(37.0).bottleneck
    assert (verdict.bound_by, verdict.role, verdict.summary) == (None, "trainer", summary)
    assert verdict.step_seconds == pytest.approx(4.0)


def engine(replica: str, pid: int) -> EngineFacts:
    return EngineFacts(replica, "", "http://h:8000", "up", 100.0, pid=pid, read_seconds=200.0)


def test_engines_of_two_nodes_keep_apart():
    one, two = nodes()
    hub = Hub(one, two)
    pid = one.seat(0).pid
    hub.tell(one.facts(1, engines=(engine("0", pid),)), 1)
    hub.tell(two.facts(1), 1)
    assert [e.replica for e in hub.run(2).engines.replicas] == ["0"]
    hub.tell(two.facts(2, engines=(engine("0", pid),)), 2)
    hub.tell(one.facts(2), 2)
    found = hub.run(3).engines.replicas
    assert [(e.replica, e.pid) for e in found] == [("0@node-a", pid), ("0@node-b", None)]
    assert found[1].read_seconds == pytest.approx(500.0, abs=0.01), "its clock is 300 s behind"
    hub.tell(one.facts(4, engines=()), 4)
    assert [e.replica for e in hub.run(5).engines.replicas] == ["0"]
