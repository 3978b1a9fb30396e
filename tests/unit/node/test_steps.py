"""Steps as they close over the ranks of a role, and what a rank worked and waited in them."""

from __future__ import annotations

import pytest
from matched_scene import Rank

from dfx_agent.facts.steps import TRANSFER
from dfx_agent.node.collectives.matching import Collectives
from dfx_agent.node.segments.records import Collective
from dfx_agent.node.steps import StepWatch, rank_step
from dfx_agent.node.time.account import StepInterval
from dfx_agent.node.time.closed_step import ClosedStep


def passed(step: int | None, waited_ns: int = 0) -> ClosedStep:
    """A step of 1000 ns that began at 1000 x step."""
    window = StepInterval(step, 1000 * (step or 0), 1000 * (step or 0) + 1000)
    window.split.stages_ns["rollout"] = window.split.active_ns = 1000 - waited_ns
    window.split.waits_ns["collective", ""] = waited_ns
    return ClosedStep(window, {"response": 7.0})


@pytest.fixture
def ranks() -> list[Rank]:
    return [Rank("0"), Rank("1")]


def closed(
    watch: StepWatch, living: list[Rank], collectives: Collectives | None = None
) -> list[tuple[int, str]]:
    steps = watch.close(living, collectives or Collectives())
    return [(step.step, "".join(sorted(step.ranks))) for step in steps]


def test_a_step_is_taken_when_all_living_ranks_have_passed_it(ranks):
    watch = StepWatch()
    watch.add(ranks[0], [passed(None), passed(1), passed(2)])
    watch.add(ranks[1], [])
    assert closed(watch, ranks) == []
    watch.add(ranks[1], [passed(1)])
    (step,) = watch.close(ranks, Collectives())
    assert (step.step, sorted(step.ranks)) == (1, ["0", "1"])
    assert step.begin_seconds == pytest.approx(1000 + 1e-6)
    assert step.end_seconds == pytest.approx(1000 + 2e-6)
    assert step.ranks["0"].num_tokens == 7
    assert closed(watch, ranks[:1]) == [(2, "0")]  # rank 1 is gone


def test_at_the_end_of_the_job_the_last_step_has_all_ranks(ranks):
    watch = StepWatch()
    watch.add(ranks[0], [passed(9)])
    watch.add(ranks[1], [])
    assert closed(watch, []) == []
    watch.add(ranks[1], [passed(9)])
    assert closed(watch, []) == [(9, "01")]


def test_a_restart_resets_the_state(ranks):
    watch = StepWatch()
    for rank in ranks:
        watch.add(rank, [passed(5), passed(6)])
    watch.close(ranks, Collectives())
    assert watch.add(ranks[0], [passed(7)])
    again = [Rank("0"), Rank("1")]
    assert not watch.add(again[0], [passed(5)])
    assert watch.add(again[1], [passed(5)])
    assert closed(watch, again) == [(5, "01")]


def test_what_a_rank_far_behind_has_not_passed_comes_one_reading_later_without_it(ranks):
    watch = StepWatch()
    watch.add(ranks[1], [])
    ranks[1].step = 1
    for step in range(1, 4):
        watch.add(ranks[0], [passed(step)])
    ranks[0].step = 4
    assert closed(watch, ranks) == []
    assert closed(watch, ranks) == [(1, "0"), (2, "0")]
    watch.add(ranks[1], [passed(1)])
    ranks[1].step = 2
    assert closed(watch, ranks) == []
    assert closed(watch, ranks) == [(1, "1")]


def test_transfer_of_matched_collectives_is_taken_out_of_the_waiting(ranks):
    """Rank 0 waits 300 ns, 200 of them for rank 1; the next step's transfer is not this one's."""
    watch, collectives = StepWatch(), Collectives()
    for sequence, base in enumerate((1000, 2000), start=1):
        for rank, arrival in zip(ranks, (500, 700), strict=True):
            rank.collectives.append(
                Collective(
                    "all_reduce", "0", sequence, base + arrival, base + 800, 1.0, 1, 0,
                    is_blocking=True, is_wait=False, has_failed=False,
                )
            )  # fmt: skip
    for _ in range(3):
        for rank in ranks:
            collectives.add(rank)
            rank.collectives = []
        collectives.settle()
    watch.add(ranks[0], [passed(1, waited_ns=300)])
    watch.add(ranks[1], [passed(1, waited_ns=100)])
    (step,) = watch.close(ranks, collectives)
    first, second = step.ranks["0"], step.ranks["1"]
    assert (first.waited_seconds, first.parts[TRANSFER]) == (200e-9, 100e-9)
    assert (second.waited_seconds, second.parts[TRANSFER]) == (0, 100e-9)
    assert first.work_seconds == pytest.approx(800e-9)


def test_waiting_is_explicit_waits_and_collectives_without_transfer_each_once():
    window = StepInterval(1, 0, 2 * 10**9)
    split = window.split
    split.active_ns, split.idle_ns = 12 * 10**8, 2 * 10**8
    split.stages_ns.update(rollout=7 * 10**8, actor_update=5 * 10**8)
    split.waits_ns["collective", "actor_update"] = 3 * 10**8
    split.waits_ns["barrier", "weight_sync"] = 2 * 10**8
    split.waits_ns["collector", ""] = 10**8
    closed = ClosedStep(window, {"prompt": 10.0, "response": 30.0}, 64.0, 1.1)
    entry = rank_step(closed, transfer_seconds=0.05)
    assert (entry.num_forward_tokens, entry.busy_seconds) == (64.0, 1.1)
    assert entry.waited_seconds == pytest.approx(0.45)
    assert entry.work_seconds == pytest.approx(1.55)
    assert entry.work_seconds == pytest.approx(sum(entry.parts.values()))
    assert entry.num_tokens == 40
    beside = rank_step(ClosedStep(window), transfer_seconds=9.0)  # in threads, nobody waits in them
    assert beside.waited_seconds == 0
    assert beside.num_tokens is None
