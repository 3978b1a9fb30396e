"""Who is slow on a busy host: who is last and computes most, each too often for chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dfx_agent.facts.steps import IDLE, TRANSFER, RankStep, RoleSteps, SchedTimes, Step
from dfx_agent.judge.straggler.causes import DATA_LOADER
from dfx_agent.judge.straggler.judge import StragglerJudge
from dfx_agent.judge.straggler.witnesses import Looks, p_value
from dfx_agent.judge.straggler.witnesses import testimonies as witnessed
from dfx_agent.snapshot import Verdict

NUM_RANKS, CPU_SECONDS = 4, 0.25
Factor = Callable[[int, int], float]


def busy_steps(
    num_steps: int,
    computes: Factor,
    *,
    sleeps: Factor = lambda *_: 0.0,
    seed: int = 0,
    share: float = 0.25,
) -> list[Step]:
    """``computes(step, rank)`` times the work on a host that gives a rank ``share`` of a CPU.

    How long the scheduler takes over it varies by a third from step to step.
    """  # fmt: skip
    rng = random.Random(seed)
    return [_step(number, rng, computes, sleeps, share) for number in range(1, num_steps + 1)]


def _step(number: int, rng: random.Random, computes: Factor, sleeps: Factor, share: float) -> Step:
    cpu, work = [], []
    for rank in range(NUM_RANKS):
        cpu.append(CPU_SECONDS * computes(number, rank) * rng.lognormvariate(0, 0.03))
        work.append(cpu[rank] / share * rng.lognormvariate(0, 0.12) + sleeps(number, rank))
    wall = max(work)
    ranks = {
        str(rank): RankStep(
            wall, wall - work[rank],
            {IDLE: 0.0, TRANSFER: 0.0, ("stage", "rollout"): work[rank] - sleeps(number, rank),
             DATA_LOADER: sleeps(number, rank)},
            None, None, cpu[rank],
            SchedTimes(int(cpu[rank] * 1e9), int(cpu[rank] * (1 / share - 1) * 1e9)),
        )
        for rank in range(NUM_RANKS)
    }  # fmt: skip
    return Step(number, 1.5 * number, 0, ranks)


def slow(factor: float, rank: int = 2, since: int = 0, until: int = 10**6) -> Factor:
    return lambda step, entry: factor if entry == rank and since <= step <= until else 1.0


def verdicts(steps: Sequence[Step]) -> list[Verdict]:
    judge = StragglerJudge()
    facts = (RoleSteps("t", tuple(steps[max(0, n - 32) : n]), 1.0, NUM_RANKS, NUM_RANKS)
             for n in range(1, len(steps) + 1))  # fmt: skip
    return [verdict for item in facts if (verdict := judge.verdict(item)) is not None]


@pytest.mark.parametrize("factor", [1.3, 1.5])
@pytest.mark.parametrize("seed", range(5))
def test_on_a_busy_host_a_rank_that_computes_more_is_named_within_45_steps_and_stays(factor, seed):
    found = [v.ranks for v in verdicts(busy_steps(150, slow(factor), seed=seed))]
    assert set(found) == {(), ("2",)}
    first = found.index(("2",))
    assert first < 45
    assert set(found[first:]) == {("2",)}


def faulting_steps(factor: float, share: float) -> list[Step]:
    """Rank 1 has page faults that take a fifth of its CPU time more, rank 2 computes more."""
    steps = busy_steps(120, lambda _, rank: {1: 1.2, 2: factor}.get(rank, 1.0), share=share)
    num_faults = round(0.2 * CPU_SECONDS / 2.7e-6)
    return [_with_faults(step, "1", num_faults) for step in steps]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_a_rank_with_page_faults_on_a_full_host_is_not_accused(share):
    """Healthy DDP at load 18: last in 45 of 48 looks, 17 % more CPU time, 2,500 faults a step."""
    found = verdicts(faulting_steps(1.0, share))
    assert not any(v.ranks for v in found)
    assert found[-1].summary.startswith("Page faults slow rank 1 by 18 % of a step")


def test_page_faults_of_one_rank_do_not_hide_another_that_computes_more():
    found = [v.ranks for v in verdicts(faulting_steps(1.5, 0.25))]
    assert set(found) == {(), ("2",)}
    assert found[-1] == ("2",)


def test_on_a_quiet_host_page_faults_are_the_reason_and_nobody_is_accused():
    last = verdicts(faulting_steps(1.0, 0.98))[-1]
    assert (last.state, last.cause, last.ranks) == ("insufficient evidence", "page faults", ())
    assert last.summary.startswith("Page faults slow rank 1 ")
    assert "18,519 in every step, on the other ranks 0." in last.summary
    assert "MALLOC_TRIM_THRESHOLD_" in last.action


def test_the_sentence_counts_and_mentions_the_host():
    verdict = verdicts(busy_steps(60, slow(1.5)))[-1]
    assert verdict.summary.startswith("Rank 2 is slow. It was last in ")
    assert " more CPU time than the other ranks: slower, in rollout." in verdict.summary
    assert "This machine has more runnable threads than CPUs" in verdict.summary
    assert any("used most CPU time in" in line for line in verdict.evidence)
    assert verdict.lost_seconds is not None


def test_the_begin_is_known_beyond_the_newest_32_steps():
    found = verdicts(busy_steps(100, slow(1.5, since=60)))
    assert all(1.5 * 50 <= (v.since_seconds or 0) <= 1.5 * 62 for v in found[97:])


def test_a_rank_that_computes_outside_all_stages_is_slower_not_late():
    steps = [_unmarked(step) for step in busy_steps(60, slow(1.5))]
    last = verdicts(steps)[-1]
    assert (last.ranks, last.cause) == (("2",), "slower, tokens unknown")
    assert ": slower, in time outside all stages." in last.summary


@pytest.mark.parametrize("seed", range(10))
def test_equal_ranks_on_a_busy_host_are_accused_of_nothing(seed):
    assert not {v.ranks for v in verdicts(busy_steps(200, slow(1.0), seed=seed))} - {()}


def test_a_rank_that_recovers_is_cleared_within_ten_steps():
    found = verdicts(busy_steps(120, slow(1.5, until=80)))
    assert found[79].ranks == ("2",)
    assert not [v for v in found[90:] if v.ranks]


def test_a_rank_that_computes_more_and_delays_nobody_is_not_named():
    """As rank 0 that logs while it waits for the others: most CPU time, never last."""
    steps = [_more_cpu(step, "0", 0.1) for step in busy_steps(100, slow(1.0))]
    assert not [v for v in verdicts(steps) if v.ranks]


def test_a_rank_that_is_last_and_computes_as_much_as_the_others_is_not_named():
    asleep = busy_steps(100, slow(1.0), sleeps=lambda _, rank: 0.5 * (rank == 1))
    looks = Looks.from_steps(asleep)
    assert all(min(s.ranks, key=lambda r: s.ranks[r].waited_seconds) == "1" for s in looks[:5])
    assert witnessed(looks, ()) == []


@pytest.mark.parametrize("share", [0.25, 0.95])
def test_an_empty_data_loader_is_named_and_nobody_blamed(share):
    steps = busy_steps(60, slow(1.0), sleeps=lambda _, rank: 0.8 * (rank == 1), share=share)
    found = verdicts(steps)
    assert not [v for v in found if v.ranks]
    last = found[-1]
    assert (last.state, last.cause) == ("insufficient evidence", "data loader")
    assert last.summary.startswith("The job waits for data: the data loader of rank 1 is empty")
    assert "workers" in last.action


def test_what_was_found_on_a_quiet_host_stays_when_the_host_becomes_busy():
    quiet = busy_steps(30, slow(1.0), sleeps=lambda _, rank: 0.0, share=0.95)
    quiet = [_sleeping(step, "1", 0.2) for step in quiet]
    loaded = [_sleeping(_starved(step), "1", 0.2) for step in busy_steps(60, slow(1.0), share=0.95)]
    found = verdicts([*quiet, *(replace(s, step=s.step + 30) for s in loaded)])
    assert found[20].ranks == ("1",)
    assert {v.ranks for v in found[20:]} == {("1",)}
    assert not [v for v in verdicts(loaded) if v.ranks], "but it is not found there"


def test_one_of_several_that_are_as_slow_is_not_singled_out_where_the_layout_is_unknown():
    """Seen: the last stage of a pipeline is 40 % longer on both of its ranks, one is last often."""
    steps = busy_steps(120, lambda step, rank: 1.45 if rank == 3 else 1.35 if rank == 2 else 1.0)
    found = verdicts(steps)
    assert not [v for v in found if v.ranks]


def test_short_steps_are_looked_at_in_seconds():
    short = [replace(step, num_steps=1) for step in busy_steps(100, slow(1.5), share=1.0)]
    looks = Looks.from_steps(short)
    seconds = [look.num_steps * look.ranks["0"].wall_seconds for look in looks]
    assert min(seconds) >= 1.0
    assert sum(look.num_steps for look in looks) <= 100


def test_a_restart_begins_again():
    looks = Looks()
    steps = busy_steps(20, slow(1.0))
    assert len(looks.add(steps)) == 20
    assert len(looks.add(steps[:3])) == 3


@pytest.mark.parametrize(
    ("count", "num_looks", "num_ranks", "chance"),
    [(0, 20, 4, 1.0), (20, 20, 2, 2 * 0.5**20), (1, 1, 10, 1.0), (12, 12, 3, 3 * (1 / 3) ** 12)],
)
def test_chance_of_a_count_among_equal_ranks(count, num_looks, num_ranks, chance):
    assert p_value(count, num_looks, num_ranks) == pytest.approx(chance)


def _with_faults(step: Step, rank: str, num_faults: int) -> Step:
    entry = step.ranks[rank]
    assert entry.processor is not None
    had = entry.processor._replace(system_ns=int(num_faults * 2700), num_faults=num_faults)
    return replace(step, ranks={**step.ranks, rank: replace(entry, processor=had)})


def _more_cpu(step: Step, rank: str, seconds: float) -> Step:
    entry = step.ranks[rank]
    more = replace(entry, busy_seconds=(entry.busy_seconds or 0.0) + seconds)
    return replace(step, ranks={**step.ranks, rank: more})


def _unmarked(step: Step) -> Step:
    ranks = {
        label: replace(entry, parts={IDLE: entry.parts["stage", "rollout"], TRANSFER: 0.0})
        for label, entry in step.ranks.items()
    }
    return replace(step, ranks=ranks)


def _sleeping(step: Step, rank: str, seconds: float) -> Step:
    """All others wait for this rank for so long more."""
    ranks = {
        label: replace(
            entry, wall_seconds=entry.wall_seconds + seconds,
            waited_seconds=entry.waited_seconds + (0.0 if label == rank else seconds),
            parts={**entry.parts, IDLE: seconds if label == rank else 0.0},
        )
        for label, entry in step.ranks.items()
    }  # fmt: skip
    return replace(step, ranks=ranks)


def _starved(step: Step) -> Step:
    ranks = {
        label: replace(entry, processor=SchedTimes(10**8, 3 * 10**8))
        for label, entry in step.ranks.items()
    }
    return replace(step, ranks=ranks)
