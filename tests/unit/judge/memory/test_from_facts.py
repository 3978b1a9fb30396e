"""The memory verdict: by what is left, of the limit that is nearest, for all who use it up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.facts.memory import DeviceUse, MemoryFacts, MemoryLimit
from dfx_agent.facts.seat import ProcessId
from dfx_agent.judge.memory.judge import MemoryJudge
from dfx_agent.snapshot import GlibcHeap, Verdict

MIB, GIB = 2**20, 2**30


def limit(path: str, total_gib: float, free_gib: float, node: str = "here") -> MemoryLimit:
    return MemoryLimit(node, path, int(total_gib * GIB), int(free_gib * GIB))


def host(free_gib: float, node: str = "here") -> MemoryLimit:
    return limit("", 1000, free_gib, node)


def rank(
    label: str,
    num_steps: int = 64,
    mib_per_step: float = 0.0,
    role: str = "trainer",
    step_seconds: float = 10.0,
    limits: tuple[MemoryLimit, ...] = (host(900),),
) -> MemoryFacts:
    samples = ((n, GIB + n * mib_per_step * MIB) for n in range(1, num_steps + 1))
    return MemoryFacts(
        process=ProcessId(role, label, 1), step=num_steps, step_seconds=step_seconds,
        samples=tuple(samples), limits=limits,
    )  # fmt: skip


def on_device(facts: MemoryFacts, reserved: float, gap_mib_per_step: float) -> MemoryFacts:
    """Shares of 80 GiB."""
    unused = tuple((n, 2 * GIB + n * gap_mib_per_step * MIB) for n in range(1, 65))
    device = DeviceUse("cuda:0", 80.0 * GIB, reserved * 80 * GIB, unused)
    return replace(facts, devices=(device,))


def judged(*ranks: MemoryFacts) -> list[Verdict]:
    return list(MemoryJudge().verdicts(ranks, 100.0))


def test_a_leak_of_20_mib_a_step_is_found_by_the_steps_until_the_host_is_full():
    (verdict,) = judged(rank("0", 64, 20.0, limits=(host(10),)), rank("1"))
    assert (verdict.kind, verdict.state, verdict.cause) == ("memory", "found", "host leak")
    assert verdict.ranks == ("0",)
    assert verdict.summary == (
        "Rank 0 has grown by 20 MiB per step since step 1. The host's memory is used up in about "
        "512 steps (85 min)."
    )
    assert verdict.evidence == (
        "rank 0: 1.02 GiB after step 1, 2.25 GiB after step 64",
        "the host's memory: 1e+03 GiB, 10 GiB free",
    )
    assert (verdict.since_seconds, verdict.step) == (100.0 - 63 * 10.0, 1)


def test_a_limit_that_is_near_is_told_after_16_steps_and_one_that_is_not_after_48():
    assert judged(rank("0", 15, 150.0, limits=(host(10),))) == []
    (verdict,) = judged(rank("0", 16, 150.0, limits=(host(10),)))
    assert (verdict.state, verdict.ranks) == ("found", ("0",))
    assert verdict.summary.startswith(
        "Rank 0 has grown by 150 MiB per step since step 1. The host's memory is used up in about "
        "68 steps"
    )
    assert judged(rank("0", 47, 150.0, limits=(host(30),))) == []
    (verdict,) = judged(rank("0", 48, 150.0, limits=(host(30),)))
    assert verdict.state == "found"


def test_what_grows_from_16_steps_on_is_not_told_where_its_limit_is_unknown():
    assert judged(rank("0", 16, 150.0, limits=())) == []


def test_ranks_on_one_host_use_it_up_together_and_those_on_another_do_not():
    leaks = [rank(str(n), 64, 20.0, limits=(host(10),)) for n in (3, 1, 0, 2)]
    (verdict,) = judged(*leaks)
    assert verdict.ranks == ("0", "1", "2", "3")
    assert "in about 128 steps" in verdict.summary
    (verdict,) = judged(*(replace(r, limits=(host(10, r.process.label),)) for r in leaks))
    assert "in about 512 steps" in verdict.summary


def test_a_leak_that_will_not_fill_anything_is_told_and_no_finding():
    (verdict,) = judged(rank("0", 64, 20.0))
    assert "for about 46080 more steps" in verdict.summary
    assert (verdict.state, verdict.ranks) == ("clear", ())


def test_a_leak_whose_limit_nobody_knows_is_not_clear():
    (verdict,) = judged(rank("0", 64, 20.0, limits=()))
    assert verdict.state == "insufficient evidence"
    assert verdict.summary == (
        "Rank 0 has grown by 20 MiB per step since step 1. The memory limit is not known."
    )


def test_short_steps_are_judged_by_time():
    (verdict,) = judged(rank("0", 64, 20.0, step_seconds=0.07))
    assert verdict.state == "found", "46,080 steps are 54 minutes"
    (verdict,) = judged(rank("0", 64, 20.0, step_seconds=0.09))
    assert verdict.state == "clear"


def test_the_nearest_limit_counts_also_one_of_a_group_above():
    pod, own = limit("/pod", 16, 8), limit("/pod/own", 900, 892)
    first = rank("0", 64, 20.0, limits=(own, pod, host(900)))
    other = rank("1", 64, 20.0)
    (verdict,) = judged(first, other)
    assert "The memory limit of its control group is used up in about 410 steps" in verdict.summary
    assert "the memory limit of its control group: 16 GiB, 8 GiB free" in verdict.evidence
    (verdict,) = judged(first, replace(other, limits=(pod, host(900))))
    assert "in about 205 steps" in verdict.summary


def test_no_growth_is_clear_and_too_few_steps_are_not_judged():
    (verdict,) = judged(rank("0"))
    assert (verdict.state, verdict.summary) == ("clear", "No process grows steadily.")
    assert judged(rank("0", 47, 20.0)) == []
    assert [v.state for v in judged(rank("0", 48))] == ["clear"]
    assert judged(rank("0", 1, 20.0)) == judged() == []


def test_a_process_that_has_passed_no_step_is_starting_and_no_leak():
    (verdict,) = judged(replace(rank("0", 64, 20.0), step_seconds=None))
    assert verdict.state == "clear"


def test_each_role_has_its_own():
    leaking = rank("0", 64, 20.0, role="critic", limits=(host(10),))
    verdicts = judged(rank("0"), leaking)
    assert [(v.role, v.state) for v in verdicts] == [("trainer", "clear"), ("critic", "found")]


@pytest.mark.parametrize(
    ("reserved", "gap_mib_per_step", "state"),
    [(0.93, 50.0, "found"), (0.91, 50.0, "clear"), (0.97, 0.0, "clear"), (0.93, 10.0, "clear")],
)
def test_a_device_that_is_nearly_full_and_in_pieces(reserved, gap_mib_per_step, state):
    """No allocation has been retried yet; full alone is how frameworks run."""
    full = on_device(rank("0"), reserved, gap_mib_per_step)
    (verdict,) = judged(full, on_device(rank("1"), 0.5, 50.0))
    assert verdict.state == state
    if state == "found":
        assert (verdict.cause, verdict.ranks) == ("device nearly full", ("0",))
        assert "The allocator of rank 0 holds 93% of cuda:0" in verdict.summary
        assert verdict.evidence == ("rank 0: 93.0% of cuda:0 held, 50 MiB a step more not in use",)


def flat_until(step: int, num_steps: int, noise_mib: float = 0.0) -> MemoryFacts:
    """Memory grows by 8 MiB per step from ``step`` on; every second sample of before is known."""
    grown = {
        n: GIB + 8 * MIB * max(0, n - step) + noise_mib * MIB * (n * 7 % 3)
        for n in range(1, num_steps + 1)
    }
    facts = rank("0", num_steps, limits=(host(10),))
    samples = tuple(grown.items())
    return replace(facts, samples=samples[-64:], sparse_samples=(samples[1::2],))


@pytest.mark.parametrize("noise_mib", [0.0, 3.0])
def test_a_leak_began_where_memory_begins_to_grow_and_not_where_it_was_noticed(noise_mib):
    facts = flat_until(20, 94, noise_mib)
    (verdict,) = judged(facts)
    assert verdict.state == "found"
    assert abs(verdict.step - 20) <= 2
    assert f"since step {verdict.step}." in verdict.summary
    assert verdict.since_seconds == 100.0 - (94 - verdict.step) * 10.0


def test_of_growth_that_was_there_before_all_samples_the_begin_is_open():
    samples = tuple((n, GIB + n * 20.0 * MIB) for n in range(300, 364))
    (verdict,) = judged(replace(rank("0", limits=(host(10),)), step=363, samples=samples))
    assert "since step 300 or earlier." in verdict.summary


def test_since_is_when_it_was_first_found_and_begins_anew_after_it_was_over():
    judge = MemoryJudge()

    def since(at: float, free_gib: float) -> float | None:
        (verdict,) = judge.verdicts([rank("0", 64, 20.0, limits=(host(free_gib),))], at)
        return verdict.since_seconds

    assert [since(100, 10), since(200, 9), since(300, 900), since(400, 8)] == [
        -530,
        -530,
        None,
        -230,
    ]


def test_the_end_of_one_roles_leak_leaves_the_begin_of_the_others():
    judge = MemoryJudge()
    actor = rank("0", 64, 20.0, limits=(host(10),))
    critic = rank("0", 64, 20.0, role="critic", limits=(host(10),))
    assert [v.since_seconds for v in judge.verdicts([actor, critic], 100.0)] == [-530.0, -530.0]
    critic = rank("0", role="critic")
    for _ in range(2):
        assert [v.since_seconds for v in judge.verdicts([actor, critic], 200.0)] == [-530.0, None]


def test_the_fullest_device_is_told_of_and_all_ranks_that_have_one():
    (verdict,) = judged(*(on_device(rank(str(n)), r, 50.0) for n, r in enumerate((0.93, 0.95))))
    assert verdict.ranks == ("0", "1")
    assert "The allocator of ranks 0, 1 holds 95% of cuda:0" in verdict.summary


@pytest.mark.parametrize("unknown", [{"limit_bytes": None}, {"limit_bytes": 0.0}])
def test_a_device_without_a_known_limit_or_use_is_not_judged(unknown):
    full = on_device(rank("0"), 0.93, 50.0)
    for known in (unknown, {"reserved_bytes": None}):
        (device,) = full.devices
        (verdict,) = judged(replace(full, devices=(replace(device, **known),)))
        assert verdict.state == "clear"


class Trend:
    """The newest 64 steps, and 64 of each second, fourth and eighth."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float]] = []

    def facts(self, step: int, num_bytes: float) -> MemoryFacts:
        self.rows.append((step, num_bytes))
        sparse = (tuple(self.rows[::stride][-64:]) for stride in (2, 4, 8))
        return replace(
            rank("0", step_seconds=1.0, limits=(host(10),)), step=step,
            samples=tuple(self.rows[-64:]), sparse_samples=tuple(sparse),
        )  # fmt: skip


@pytest.mark.parametrize("period", [64, 100, 200])
def test_a_buffer_that_is_emptied_now_and_then_is_named_in_its_first_filling_alone(period: int):
    trend, judge, found = Trend(), MemoryJudge(), []
    for step in range(1, 512):
        facts = trend.facts(step, float(GIB + step % period * 100 * MIB))
        found += [step for verdict in judge.verdicts([facts], 100.0) if verdict.state == "found"]
    assert found
    assert max(found) < period + 48


def test_checkpoints_hide_no_leak():
    trend = Trend()
    for step in range(1, 201):
        spike = 0 if step % 50 else 20 * GIB
        facts = trend.facts(step, float(GIB + step * 100 * MIB + spike))
    (verdict,) = judged(facts)
    assert verdict.cause == "host leak"


@pytest.mark.parametrize(("every", "by_step"), [(10, 80), (50, 200)])
def test_a_leak_at_every_so_many_steps_is_found_and_stays_so(every, by_step):
    """Who evaluates at every tenth step may leak there: it does not come and go."""
    trend, judge, states = Trend(), MemoryJudge(), []

    def passes(step: int, num_lumps: int) -> None:
        facts = trend.facts(step, GIB + 200 * MIB * num_lumps)
        states.extend(v.state for v in judge.verdicts([facts], 0.0))

    for step in range(1, 700):
        passes(step, step // every)
    first = states.index("found")
    assert first <= by_step
    assert set(states[first:]) == {"found"}
    for step in range(700, 700 + 520):
        passes(step, 699 // every)
    assert states[-1] == "clear"


def heap(used: float, retained: float | None, trimmable: float | None) -> GlibcHeap:
    """In GiB."""
    known = (None if item is None else item * GIB for item in (retained, trimmable))
    return GlibcHeap(used * GIB, *known)


def test_what_glibc_keeps_of_a_leak_is_evidence_and_what_can_be_done_is_said():
    leak = rank("0", 64, 20.0, limits=(host(10),))
    (verdict,) = judged(replace(leak, heap=heap(0.5, 1.3, 1.25)))
    assert verdict.evidence[1] == (
        "rank 0: of 2.25 GiB, 512 MiB are allocated by glibc's malloc, 1.3 GiB are freed but "
        "retained by it, and 461 MiB are not malloc's (for example Python's small objects); "
        "malloc_trim(0) would return about 1.25 GiB"
    )
    (verdict,) = judged(replace(leak, heap=heap(0.5, 1.3, 0.1)))
    assert (
        "the retained pieces are smaller than a page and cannot be returned" in verdict.evidence[1]
    )


@pytest.mark.parametrize("kept", [None, heap(2.0, 0.2, 0.2), heap(2.0, None, None)])
def test_of_what_is_little_or_not_known_nothing_is_said(kept):
    (verdict,) = judged(replace(rank("0", 64, 20.0, limits=(host(10),)), heap=kept))
    assert len(verdict.evidence) == 2


def keeping(facts: MemoryFacts, *gib: float, limit_gib: float | None = 80.0) -> MemoryFacts:
    """What its allocator held without use through each of its rollouts."""
    stored = tuple((n, item * GIB) for n, item in enumerate(gib, 1))
    limit_bytes = None if limit_gib is None else limit_gib * GIB
    device = DeviceUse("cuda:0", limit_bytes, 40.0 * GIB, offloaded_samples=stored)
    return replace(facts, devices=(device,))


def test_what_offloading_left_with_the_allocator_is_found_after_four_rollouts():
    ranks = keeping(rank("0", 4), 30, 38, 39, 40), keeping(rank("1", 4), 38, 38, 38, 38)
    (verdict,) = judged(*ranks)
    assert (verdict.state, verdict.cause, verdict.ranks) == (
        "found", "memory not given back", ("0", "1"),
    )  # fmt: skip
    assert verdict.stage == "rollout"
    assert verdict.summary == (
        "Ranks 0, 1 hold 38 GiB of cuda:0 while offloaded and use none of it: offloading did not "
        "release it."
    )
    assert verdict.evidence == (
        "rank 0: 30 GiB, 38% of cuda:0, held and unused while offloaded in the last 4 steps",
        "rank 1: 38 GiB, 48% of cuda:0, held and unused while offloaded in the last 4 steps",
    )
    assert verdict.action == "Call torch.cuda.empty_cache() after offloading."


@pytest.mark.parametrize("gib", [(), (38, 38, 38), (38, 38, 38, 7.9), (1, 2, 1, 2), (0, 0, 0, 0)])
def test_an_allocator_that_gives_back_now_and_then_or_holds_little_is_healthy(gib):
    assert judged(keeping(rank("0", 10), *gib)) == []
    assert judged(keeping(rank("0", 10), 38, 38, 38, 38, limit_gib=None)) == []


@given(
    st.lists(st.floats(0.0, 79.0), min_size=4, max_size=64),
    st.integers(0, 3),
    st.floats(0.0, 7.9),
)
def test_a_sawtooth_whose_newest_rollouts_were_lean_once_is_never_accused(held, at, lean):
    held[-1 - at] = lean
    assert judged(keeping(rank("0", 10), *held)) == []
