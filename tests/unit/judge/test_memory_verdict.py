"""The memory verdict: by what is left, of the limit that is nearest, for all who use it up."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dfx_agent.host.cgroup import MemoryGroup
from dfx_agent.judge import memory as memory_verdict
from dfx_agent.judge.memory import MemoryWatch
from dfx_agent.node.memory.use import ProcessMemory
from dfx_agent.node.process import ClosedStep
from dfx_agent.node.time.account import Window
from dfx_agent.snapshot import Verdict
from dfx_agent.wire import Identity

MIB, GIB = 2**20, 2**30
SECOND = 10**9


@dataclass(eq=False)
class Rank:
    """As much of a process as the verdict reads."""

    label: str
    role: str = "trainer"
    step: int = 64
    is_living: bool = True
    gauges: dict = field(default_factory=dict)
    memory: ProcessMemory = field(default_factory=ProcessMemory)
    windows: deque = field(default_factory=deque)

    @property
    def filed_as(self) -> Identity:
        return Identity(run="r", role=self.role)

    def passes(self, num_steps: int, mib_per_step: float, step_seconds: float = 10.0) -> Rank:
        for step in range(1, num_steps + 1):
            self.memory.trend.add(step, GIB + step * mib_per_step * MIB)
            begin = int(step * step_seconds * SECOND)
            end = begin + int(step_seconds * SECOND)
            self.windows.append(ClosedStep(Window(step, begin, end)))
        return self

    def on_device(self, reserved: float, gap_mib_per_step: float) -> Rank:
        """Shares of 80 GiB."""
        for step in range(1, 65):
            gap = 2 * GIB + step * gap_mib_per_step * MIB
            self.gauges = {
                "memory/limit_bytes@cuda:0": 80.0 * GIB,
                "memory/reserved_bytes@cuda:0": reserved * 80 * GIB,
                "memory/allocated_bytes@cuda:0": reserved * 80 * GIB - gap,
            }
            self.memory.sample_devices(step, self.gauges)
        return self


@pytest.fixture
def host(monkeypatch):
    """A host of 1000 GiB; ``host(free)`` leaves that many."""

    def leave(free_gib: float) -> None:
        monkeypatch.setattr(memory_verdict, "available_bytes", lambda: int(free_gib * GIB))
        monkeypatch.setattr(memory_verdict, "total_bytes", lambda: 1000 * GIB)

    leave(900)
    return leave


def group(folder: Path, limit_gib: float, used_gib: float) -> MemoryGroup:
    folder.mkdir()
    (folder / "memory.max").write_text(f"{int(limit_gib * GIB)}\n")
    (folder / "memory.current").write_text(f"{int(used_gib * GIB)}\n")
    return MemoryGroup(str(folder), is_v2=True)


def judged(*ranks: Rank) -> list[Verdict]:
    return list(MemoryWatch().verdicts({(rank.role, rank.label): rank for rank in ranks}))


def test_a_leak_of_20_mib_a_step_is_found_by_the_steps_until_the_host_is_full(host):
    host(10)
    (verdict,) = judged(Rank("0").passes(64, 20.0), Rank("1").passes(64, 0.0))
    assert (verdict.kind, verdict.state, verdict.cause) == ("memory", "found", "host leak")
    assert verdict.ranks == ("0",)
    assert verdict.summary == (
        "rank 0 keeps 20 MiB more a step: the host's memory is used up in about 512 steps (85 min)"
    )
    assert verdict.evidence == (
        "rank 0: 1.02 GiB after step 1, 2.25 GiB after step 64",
        "the host's memory: 1e+03 GiB, 10 GiB free",
    )
    assert verdict.since_seconds is not None


def test_ranks_on_one_host_use_it_up_together(host):
    host(10)
    (verdict,) = judged(*(Rank(str(n)).passes(64, 20.0) for n in (3, 1, 0, 2)))
    assert verdict.ranks == ("0", "1", "2", "3")
    assert "in about 128 steps" in verdict.summary


def test_a_leak_that_will_not_fill_anything_is_told_and_no_finding(host):
    (verdict,) = judged(Rank("0").passes(64, 20.0))
    assert "in about 46080 steps" in verdict.summary
    assert (verdict.state, verdict.ranks) == ("clear", ())


def test_short_steps_are_judged_by_time(host):
    (verdict,) = judged(Rank("0").passes(64, 20.0, step_seconds=0.07))
    assert verdict.state == "found", "46,080 steps are 54 minutes"
    (verdict,) = judged(Rank("0").passes(64, 20.0, step_seconds=0.09))
    assert verdict.state == "clear"


def test_the_nearest_limit_counts_also_one_of_a_group_above(host, tmp_path):
    pod, own = group(tmp_path / "pod", 16, 8), group(tmp_path / "own", 900, 8)
    rank, other = Rank("0").passes(64, 20.0), Rank("1").passes(64, 20.0)
    rank.memory.groups = (own, pod)
    (verdict,) = judged(rank, other)
    assert "the memory limit of its control group is used up in about 410 steps" in verdict.summary
    assert "the memory limit of its control group: 16 GiB, 8 GiB free" in verdict.evidence
    other.memory.groups = (pod,)
    (verdict,) = judged(rank, other)
    assert "in about 205 steps" in verdict.summary


def test_no_growth_is_clear_and_too_few_steps_are_not_judged(host):
    (verdict,) = judged(Rank("0").passes(64, 0.0))
    assert (verdict.state, verdict.summary) == ("clear", "no process grows steadily")
    assert judged(Rank("0").passes(47, 20.0)) == []
    dead = Rank("0").passes(64, 20.0)
    dead.is_living = False
    assert judged(dead) == []


def test_each_role_has_its_own(host):
    host(10)
    verdicts = judged(Rank("0").passes(64, 0.0), Rank("0", role="critic").passes(64, 20.0))
    assert [(v.role, v.state) for v in verdicts] == [("trainer", "clear"), ("critic", "found")]


@pytest.mark.parametrize(
    ("reserved", "gap_mib_per_step", "state"),
    [(0.93, 50.0, "found"), (0.91, 50.0, "clear"), (0.97, 0.0, "clear"), (0.93, 10.0, "clear")],
)
def test_a_device_that_is_nearly_full_and_in_pieces(host, reserved, gap_mib_per_step, state):
    """No allocation has been retried yet; full alone is how frameworks run."""
    rank = Rank("0").passes(64, 0.0).on_device(reserved, gap_mib_per_step)
    (verdict,) = judged(rank, Rank("1").passes(64, 0.0).on_device(0.5, 50.0))
    assert verdict.state == state
    if state == "found":
        assert (verdict.cause, verdict.ranks) == ("device nearly full", ("0",))
        assert "the allocator holds 93% of cuda:0" in verdict.summary
        assert verdict.evidence == ("rank 0: 93.0% of cuda:0 held, 50 MiB a step more not in use",)


def test_since_is_when_it_was_first_found_and_begins_anew_after_it_was_over(host, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(memory_verdict.time, "time", lambda: now[0])
    monkeypatch.setattr(memory_verdict.time, "monotonic", lambda: now[0])
    watch, ranks = MemoryWatch(), {("trainer", "0"): Rank("0").passes(64, 20.0)}

    def since(at: float, free_gib: float) -> float | None:
        now[0] = at
        host(free_gib)
        (verdict,) = watch.verdicts(ranks)
        return verdict.since_seconds

    assert [since(100, 10), since(200, 9), since(300, 900), since(400, 8)] == [100, 100, None, 400]


def test_48_steps_are_enough(host):
    assert [v.state for v in judged(Rank("0").passes(48, 0.0))] == ["clear"]


def test_the_end_of_one_roles_leak_leaves_the_begin_of_the_others(host, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(memory_verdict.time, "time", lambda: now[0])
    host(10)
    actor, critic = Rank("0").passes(64, 20.0), Rank("0", role="critic").passes(64, 20.0)
    watch, ranks = MemoryWatch(), {("trainer", "0"): actor, ("critic", "0"): critic}
    assert [v.since_seconds for v in watch.verdicts(ranks)] == [100.0, 100.0]
    now[0] = 200.0
    ranks["critic", "0"] = Rank("0", role="critic").passes(64, 0.0)
    for _ in range(2):
        assert [v.since_seconds for v in watch.verdicts(ranks)] == [100.0, None]


def test_the_fullest_device_is_told_of_and_all_ranks_that_have_one(host):
    ranks = [Rank(str(n)).passes(64, 0.0).on_device(r, 50.0) for n, r in enumerate((0.93, 0.95))]
    (verdict,) = judged(*ranks)
    assert verdict.ranks == ("0", "1")
    assert "the allocator holds 95% of cuda:0" in verdict.summary


@pytest.mark.parametrize("limit", [None, 0.0])
def test_a_device_without_a_known_limit_is_not_judged(host, limit):
    rank = Rank("0").passes(64, 0.0).on_device(0.93, 50.0)
    rank.gauges["memory/limit_bytes@cuda:0"] = limit
    if limit is None:
        del rank.gauges["memory/limit_bytes@cuda:0"]
    (verdict,) = judged(rank)
    assert verdict.state == "clear"
    del rank.gauges["memory/reserved_bytes@cuda:0"]
    rank.gauges["memory/limit_bytes@cuda:0"] = 80.0 * GIB
    (verdict,) = judged(rank)
    assert verdict.state == "clear"


@pytest.mark.parametrize(("every", "by_step"), [(10, 80), (50, 200)])
def test_a_leak_at_every_so_many_steps_is_found_and_stays_so(host, every, by_step):
    """Who evaluates at every tenth step may leak there: it does not come and go."""
    host(10)
    rank, watch, states = Rank("0"), MemoryWatch(), []
    for step in range(1, 700):
        rank.memory.trend.add(step, GIB + 200 * MIB * (step // every))
        rank.windows.append(ClosedStep(Window(step, step * SECOND, (step + 1) * SECOND)))
        rank.step = step
        states += [v.state for v in watch.verdicts({("trainer", "0"): rank})]
    first = states.index("found")
    assert first <= by_step
    assert set(states[first:]) == {"found"}
    for step in range(700, 700 + 520):
        rank.memory.trend.add(step, GIB + 200 * MIB * (699 // every))
        states += [v.state for v in watch.verdicts({("trainer", "0"): rank})]
    assert states[-1] == "clear"
