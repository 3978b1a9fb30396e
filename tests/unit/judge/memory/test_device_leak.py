"""Device memory that grows at every step: in how many steps it is full, and what is no leak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dfx_agent.facts.memory import DeviceUse, MemoryFacts
from dfx_agent.facts.seat import ProcessId
from dfx_agent.hub import node_facts, sending
from dfx_agent.judge.memory.judge import MemoryJudge
from dfx_agent.snapshot import Verdict

MIB, GIB = 2**20, 2**30


def rank(
    label: str, mib_per_step: float, num_steps: int = 64, peak_gib: float = 70.0, **more: Any
) -> MemoryFacts:
    """Of 80 GiB; each step takes seconds."""
    samples = tuple((n, 40 * GIB + n * mib_per_step * MIB) for n in range(1, num_steps + 1))
    device = DeviceUse(
        "cuda:0", 80.0 * GIB, 75.0 * GIB, allocated_samples=samples, peak_bytes=peak_gib * GIB
    )
    return MemoryFacts(
        process=ProcessId("actor", label, 1), step=num_steps, step_seconds=10.0,
        samples=tuple((n, float(GIB)) for n in range(1, num_steps + 1)),
        devices=(replace(device, **more),),
    )  # fmt: skip


def judged(*ranks: MemoryFacts) -> list[Verdict]:
    return list(MemoryJudge().verdicts(ranks, 100.0))


def test_a_leak_of_100_mib_a_step_is_told_by_the_steps_until_its_peak_fills_the_device():
    (verdict,) = judged(rank("0", 100.0), rank("1", 0.0))
    assert (verdict.state, verdict.cause, verdict.ranks) == ("found", "device leak", ("0",))
    assert verdict.summary == (
        "Rank 0 has allocated 100 MiB more of cuda:0 per step since step 1. The device is full in "
        "at most 102 steps (17 min)."
    )
    assert verdict.evidence[0] == (
        "rank 0: 40.1 GiB allocated after step 1, 46.2 GiB after step 64, 70 GiB at most; cuda:0 "
        "has 80 GiB"
    )
    assert "stored with their graph" in verdict.action
    assert (verdict.step, verdict.since_seconds) == (1, -530.0)


def test_what_is_beside_the_allocator_leaves_less():
    (verdict,) = judged(rank("0", 100.0, outside_bytes=5.0 * GIB))
    assert "in at most 51 steps" in verdict.summary
    assert "70 GiB at most, 5 GiB used by others;" in verdict.evidence[0]
    (verdict,) = judged(rank("0", 100.0, outside_bytes=11.0 * GIB))
    assert "in at most 0 steps" in verdict.summary


def test_who_is_full_first_says_how_many_steps_and_all_are_named():
    (verdict,) = judged(rank("0", 10.0), rank("1", 200.0), rank("2", 0.0))
    assert verdict.ranks == ("1", "0")
    assert "in at most 51 steps" in verdict.summary


def test_an_end_that_is_near_is_told_after_16_steps_and_one_that_is_not_after_48():
    assert judged(rank("0", 100.0, 15)) == []
    (verdict,) = judged(rank("0", 100.0, 16))
    assert "in at most 102 steps" in verdict.summary
    assert judged(rank("0", 20.0, 47)) == []
    (verdict,) = judged(rank("0", 20.0, 48))
    assert (verdict.state, verdict.cause) == ("found", "device leak")


@pytest.mark.parametrize(
    "facts",
    [
        rank("0", 0.0),
        rank("0", -100.0),
        rank("0", 100.0, limit_bytes=None),
        rank("0", 100.0, peak_bytes=None),
        rank("0", 100.0, allocated_samples=()),
        replace(rank("0", 100.0), step_seconds=None),
        # a cache that fills and stops; what is taken at every second step and given back
        rank("0", 0.0, allocated_samples=tuple((n, min(n, 20) * GIB) for n in range(1, 65))),
        rank("0", 0.0, allocated_samples=tuple((n, n % 2 * 9 * GIB) for n in range(1, 65))),
    ],
    ids=["even", "less", "no limit", "no peak", "no samples", "no step", "cache", "sawtooth"],
)
def test_what_does_not_grow_or_is_not_known_is_no_finding(facts: MemoryFacts):
    assert [v.state for v in judged(facts)] == ["clear"]


def test_what_is_filled_and_emptied_again_only_comes_to_where_it_was():
    """46.2 GiB after 64 steps that began at 40.1: half of that growth has to be new."""
    (verdict,) = judged(rank("0", 100.0, highest_before_bytes=45.0 * GIB))
    assert verdict.state == "clear"
    (verdict,) = judged(rank("0", 100.0, highest_before_bytes=41.0 * GIB))
    assert verdict.state == "found"


def test_who_leaks_stays_named_through_steps_that_differ():
    """Lumps of 800 MiB at every eighth step, asked at every step."""
    judge, reported = MemoryJudge(), []
    for last in range(48, 80):
        steps = range(max(1, last - 63), last + 1)
        samples = tuple((n, 40.0 * GIB + n // 8 * 800 * MIB) for n in steps)
        (verdict,) = judge.verdicts([rank("0", 0.0, allocated_samples=samples)], 100.0)
        reported.append(verdict.state)
    assert set(reported[reported.index("found") :]) == {"found"}


@pytest.mark.parametrize(("step_seconds", "state"), [(0.04, "found"), (0.05, "clear")])
def test_more_than_10_000_steps_count_where_they_are_an_hour(step_seconds: float, state: str):
    samples = tuple((n, GIB + n * MIB) for n in range(1, 65))
    slow = rank("0", 0.0, peak_gib=2.0, allocated_samples=samples)
    (verdict,) = judged(replace(slow, step_seconds=step_seconds))
    assert verdict.state == state, "79,872 steps"


def test_what_else_was_found_of_a_role_is_evidence_of_its_one_verdict():
    stored = tuple((n, 38.0 * GIB) for n in range(1, 9))
    (verdict,) = judged(rank("0", 100.0, offloaded_samples=stored))
    assert verdict.cause == "device leak"
    assert verdict.evidence[-1].startswith("Rank 0 holds 38 GiB of cuda:0 while offloaded")


def test_a_hub_is_told_what_is_new_and_joins_it():
    before, now = rank("0", 100.0, 16), rank("0", 100.0, 40)
    reported = sending._grown(before, now)
    assert reported.devices[0].allocated_samples == now.devices[0].allocated_samples[16:]
    assert node_facts._with_samples(before, reported) == now
