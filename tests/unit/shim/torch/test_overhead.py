"""The guest times itself in place, and records less above a budget."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from dfx_agent.shim import meter, patches, recorder, spans
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.torch import overhead, step_hooks
from dfx_agent.shim.torch.overhead import Overhead
from dfx_agent.wire import Identity, SegmentReader
from dfx_agent.wire.records import GAUGE, KIND_MASK

SECOND = 10**9
HOOKS = tuple(name for level in overhead._LEVELS for name in level)


@pytest.fixture
def writer(dfx_dir, monkeypatch) -> Recorder:
    made = Recorder(str(dfx_dir), Identity(run="r", role="trainer", rank=0))
    monkeypatch.setattr(recorder, "current", made)
    return made


@pytest.fixture
def reader(writer) -> Iterator[SegmentReader]:
    with closing(SegmentReader(writer.path)) as segment:
        yield segment


@pytest.fixture
def hooks(monkeypatch) -> dict[str, PatchSet]:
    """Hooks as the guest's, all at work, in a registry of their own."""
    monkeypatch.setattr(patches, "registry", {})
    monkeypatch.setattr(step_hooks.seen, "has_details", True)
    made = {}
    for name in HOOKS:
        made[name] = PatchSet(name)
        made[name].resume("active")
    return made


def seconds(account: Overhead, writer: Recorder, begin: int, end: int, cost_ns: int = 0) -> None:
    """What the job does in each of these seconds costs ``cost_ns``, where a window is open."""
    for second in range(begin, end):
        if meter.is_open and cost_ns:
            meter.spent_ns += cost_ns
        account.account(writer, second * SECOND)


def gauges(reader: SegmentReader, name: str) -> list[float]:
    rows = [r for r in reader.poll() if r[8] & KIND_MASK == GAUGE]
    return [r[3] for r in rows if reader.name(r[9]) == f"guest/{name}"]


def active(hooks: dict[str, PatchSet]) -> set[str]:
    return {name for name, hook in hooks.items() if hook.is_active}


def test_the_share_is_what_the_entries_took_while_the_window_was_open(writer, reader):
    seconds(Overhead(), writer, 0, 40, cost_ns=20_000_000)
    ratios = gauges(reader, "overhead_ratio")
    assert len(ratios) == 10, "one second of four"
    assert all(0.02 <= ratio < 0.021 for ratio in ratios), "and the thread's own time"


def test_entries_are_timed_in_an_open_window_alone(writer):
    def work() -> None:
        for _ in range(100):
            with spans.stage("rollout"):
                pass

    before = meter.spent_ns
    work()
    assert meter.spent_ns == before
    meter.open_window()
    begin = time.perf_counter_ns()
    work()
    elapsed = time.perf_counter_ns() - begin
    spent = meter.close_window()
    assert 0 < spent < elapsed
    work()
    assert meter.spent_ns == spent


def test_a_window_into_which_something_fell_that_is_done_once_says_nothing(writer, reader):
    account = Overhead()
    for second in range(30):
        if meter.is_open:
            account.restart()
        seconds(account, writer, second, second + 1, cost_ns=10**8)
    assert not meter.is_open or gauges(reader, "overhead_ratio") == []


def test_the_default_budget_takes_most_flops_and_values_and_no_witness_of_a_hang(
    writer, reader, hooks, monkeypatch
):
    monkeypatch.delenv("DFX_MAX_OVERHEAD", raising=False)
    account = Overhead()
    seconds(account, writer, 0, 13, cost_ns=10_000_000)
    assert (writer.work_stride, writer.stride) == (16, 1)
    seconds(account, writer, 13, 200, cost_ns=10_000_000)
    assert active(hooks) == {*hooks}
    assert step_hooks.seen.has_details
    assert (writer.work_stride, writer.stride) == (16, 16)
    assert gauges(reader, "given_up") == [1.0, 2.0]


def test_below_the_budget_everything_stays(writer, hooks, monkeypatch):
    monkeypatch.delenv("DFX_MAX_OVERHEAD", raising=False)
    seconds(Overhead(), writer, 0, 100, cost_ns=4_000_000)
    assert active(hooks) == {*hooks}
    assert (writer.work_stride, writer.stride) == (1, 1)


def test_no_budget_gives_up_nothing(writer, hooks, monkeypatch):
    monkeypatch.setenv("DFX_MAX_OVERHEAD", "0")
    seconds(Overhead(), writer, 0, 100, cost_ns=500_000_000)
    assert active(hooks) == {*hooks}


def test_what_was_given_up_comes_back_when_there_is_room_and_ever_later(
    writer, reader, hooks, monkeypatch
):
    monkeypatch.delenv("DFX_MAX_OVERHEAD", raising=False)
    account, changes, level = Overhead(), [], 0
    for second in range(1_000):
        costs_much = account._level == 0  # FLOPs are what it costs
        seconds(account, writer, second, second + 1, 10_000_000 if costs_much else 1_000_000)
        if account._level != level:
            level = account._level
            changes.append((second, level))
    away = [
        later - sooner for (sooner, _), (later, _) in zip(changes[::2], changes[1::2], strict=False)
    ]
    assert [level for _, level in changes[:4]] == [1, 0, 1, 0]
    assert away == sorted(away)
    assert away[0] * 2 <= away[1] + 8
    assert set(gauges(reader, "given_up")) == {0.0, 1.0}


def test_under_a_budget_that_was_asked_for_stages_and_collectives_go_last(
    writer, reader, hooks, monkeypatch
):
    monkeypatch.setenv("DFX_MAX_OVERHEAD", "0.0001%")
    account = Overhead()
    seconds(account, writer, 0, 37, cost_ns=10_000_000)
    assert active(hooks) == {"ddp", "collectives"}
    assert step_hooks.open_stage("forward") is None
    seconds(account, writer, 37, 60, cost_ns=10_000_000)
    assert not active(hooks)
    assert gauges(reader, "given_up") == [1.0, 2.0, 3.0, 4.0]


def test_another_budget_brings_back_what_was_given_up_and_says_so(
    writer, reader, hooks, monkeypatch
):
    monkeypatch.setattr(overhead, "allowed_ratio", 1e-9)
    hooks["ddp"].resume("failed")  # was never at work
    account = Overhead()
    seconds(account, writer, 0, 60, cost_ns=10_000_000)
    assert not active(hooks)
    monkeypatch.setattr(overhead, "allowed_ratio", 0.9)
    seconds(account, writer, 60, 90, cost_ns=10_000_000)
    assert active(hooks) == {*hooks} - {"ddp"}
    assert hooks["ddp"].state == "failed"
    assert step_hooks.seen.has_details
    assert (writer.work_stride, writer.stride) == (1, 1)
    assert gauges(reader, "given_up") == [1.0, 2.0, 3.0, 4.0, 0.0]


def test_the_agents_budget_goes_before_the_environments(writer, hooks, monkeypatch):
    monkeypatch.setenv("DFX_MAX_OVERHEAD", "0.0001%")
    monkeypatch.setattr(overhead, "allowed_ratio", 0.9)
    seconds(Overhead(), writer, 0, 100, cost_ns=100_000_000)
    assert active(hooks) == {*hooks}


def test_a_window_that_one_pause_made_dear_changes_nothing(writer, hooks, monkeypatch):
    monkeypatch.delenv("DFX_MAX_OVERHEAD", raising=False)
    account = Overhead()
    for second in range(400):
        is_paused = second % 40 == 0
        seconds(account, writer, second, second + 1, 100_000_000 if is_paused else 2_600_000)
    assert active(hooks) == {*hooks}


def test_it_comes_back_at_slower_steps_though_now_and_then_a_window_is_dear(
    writer, hooks, monkeypatch
):
    monkeypatch.delenv("DFX_MAX_OVERHEAD", raising=False)
    account = Overhead()
    seconds(account, writer, 0, 40, cost_ns=20_000_000)
    assert account._level == 2
    for second in range(40, 260):
        is_paused = second % 40 == 3
        seconds(account, writer, second, second + 1, 21_000_000 if is_paused else 2_700_000)
    assert active(hooks) == {*hooks}
    assert (writer.work_stride, writer.stride) == (1, 1)
