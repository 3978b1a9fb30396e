"""Stragglers of jobs whose ranks do different work: pipelines, uneven batches, nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.simulated_pipeline import (
    inferred,
    label_of,
    mean_seconds,
    simulated,
    slowed,
    steps_of,
    told,
)
from dfx_agent.facts.layout import NO_LAYOUT, Layout, RankPosition
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.judge.straggler.judge import StragglerJudge

LAYOUTS = {"told": told, "by sends": inferred}


def last_longer(stage):
    """A last stage with the loss in it."""
    return 1.3 if stage == 3 else 1.0


def judged(works, layout):
    """The verdict after each step."""
    steps, judge = steps_of(works), StragglerJudge()
    return [
        judge.verdict(RoleSteps("t", tuple(steps[max(0, end - 32) : end]), 1.0, 16, 16, layout))
        for end in range(1, len(steps) + 1)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_data", [2, 4])
def test_a_longer_last_stage_is_the_partition_and_blames_nobody(layout, num_data):
    works = simulated(num_data, 4, 40, last_longer)
    seen = judged(works, LAYOUTS[layout](works[0]))
    assert not [v for v in seen if v.ranks]
    last = seen[-1]
    assert (last.state, last.cause, last.stage) == ("clear", "partition", "pipeline stage 4 of 4")
    assert last.summary.startswith(
        "Pipeline stage 4 of 4 has 1.3 times the work of the other stages. An even split saves 0.2"
    )
    assert last.lost_seconds == pytest.approx(0.3 * 3 / 4, rel=0.1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", [(0, 0), (3, 1), (2, 3)])
def test_the_slow_rank_alone_is_named_within_five_steps_with_what_it_costs(layout, place):
    healthy = simulated(4, 4, 33, last_longer)
    works = [slowed(work, place, 1.7) if n >= 10 else work for n, work in enumerate(healthy)]
    seen = judged(works, LAYOUTS[layout](works[0]))
    label = label_of(works[0], place)
    assert {v.ranks for v in seen} == {(), (label,)}
    assert seen[14].ranks == (label,)
    cost = mean_seconds(works[10:]) - mean_seconds(healthy[10:])
    if "wait up to" in seen[-1].summary:  # in part it is hidden by the last stage
        assert place[1] < 3
        assert 0.9 * cost < seen[-1].lost_seconds < 0.7
    else:
        assert seen[-1].lost_seconds == pytest.approx(cost, rel=0.1)
    assert f"slower than its 3 peers in pipeline stage {place[1] + 1} of 4" in seen[-1].summary


def test_a_rank_that_is_slow_from_the_begin_is_named_after_three_steps():
    works = [slowed(work, (1, 2), 1.8) for work in simulated(4, 4, 20, last_longer)]
    assert [v.ranks for v in judged(works, told(works[0]))] == [(), (), *[("9",)] * 18]


def test_who_is_slower_in_the_shadow_of_a_longer_stage_is_not_named():
    healthy = simulated(4, 4, 33, lambda stage: 2.0 if stage == 3 else 1.0)
    works = [slowed(work, (1, 0), 1.4) for work in healthy]
    assert mean_seconds(works) == pytest.approx(mean_seconds(healthy), rel=0.05)
    assert not [v for v in judged(works, told(works[0])) if v.ranks]


def test_batches_that_differ_blame_nobody_and_are_said():
    works = simulated(8, 2, 40, lambda _: 1.0, batch_spread=0.5, num_batches=4)
    seen = judged(works, told(works[0]))
    assert not [v for v in seen if v.ranks]
    assert seen[-1].cause == "batches"
    assert seen[-1].summary.startswith(
        "Batches differ: in each step another rank takes longest, by "
    )
    assert seen[-1].lost_seconds > 0.05 * mean_seconds(works)


def test_noise_of_the_ranks_themselves_is_no_matter_of_batches():
    works = simulated(8, 2, 40, lambda _: 1.0, jitter=0.5, num_batches=4)
    assert all(v.cause != "batches" and not v.ranks for v in judged(works, told(works[0])))


def test_a_pipeline_that_is_longer_in_every_stage_has_longer_batches():
    works = simulated(4, 4, 20, lambda _: 1.0)
    for stage in range(4):
        works = [slowed(work, (2, stage), 1.4) for work in works]
    seen = judged(works, told(works[0]))
    assert not [v for v in seen if v.ranks]
    assert "have longer batches in every pipeline stage" in seen[-1].summary


def test_who_has_no_peer_is_not_called_slow():
    works = simulated(1, 4, 20, last_longer)
    (last,) = judged(works, told(works[0]))[-1:]
    assert last.state == "insufficient evidence"
    assert last.summary.startswith(
        "Pipeline stage 4 of 4 has 1.3 times the work of the other stages. "
    )
    assert last.summary.endswith(
        "4 ranks have no peer that does the same work, so they cannot be compared."
    )


def on_nodes(layout, node_of):
    return Layout(
        {label: replace(place, node=node_of(label)) for label, place in layout.places.items()}
    )


def test_a_node_whose_ranks_are_all_slow_is_named_itself():
    works = simulated(4, 2, 20, lambda _: 1.0)
    for stage in range(2):
        works = [slowed(work, (3, stage), 1.5 + 0.1 * stage) for work in works]
    works = [slowed(slowed(w, (2, 0), 1.5), (2, 1), 1.6) for w in works]
    layout = on_nodes(told(works[0]), lambda label: "node-b" if int(label) % 4 > 1 else "node-a")
    last = judged(works, layout)[-1]
    assert (last.state, last.cause) == ("found", "slow node")
    assert last.summary.startswith("The ranks on node-b are slower than their peers on other nodes")
    assert last.ranks == ("2", "3", "6", "7")


def test_without_a_layout_no_more_than_a_third_is_named():
    works = simulated(8, 2, 20, lambda stage: 1.4 if stage else 1.0)
    assert not [v for v in judged(works, NO_LAYOUT) if v.ranks]


def test_sends_that_are_no_pipeline_leave_it_open_who_does_the_same_work():
    works = simulated(2, 3, 10, lambda _: 1.0)
    places = {str(r): RankPosition(r, neighbours=((r + 1) % 6, (r + 3) % 6)) for r in range(6)}
    last = judged(works, Layout(places))[-1]
    assert last.state == "insufficient evidence"
    assert "it is unknown which ranks do the same work" in last.summary


def test_one_rank_that_sends_to_all_others_is_no_pipeline():
    works = simulated(4, 1, 20, lambda _: 1.0)
    works = [slowed(work, (2, 0), 1.4) for work in works]
    places = {"0": RankPosition(0, neighbours=(1, 2, 3))} | {
        str(r): RankPosition(r) for r in range(1, 4)
    }
    assert judged(works, Layout(places))[-1].ranks == ("2",)
