"""The guest accounts for itself, and gives up detail above a budget."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from dfx_agent.shim import patches
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.torch import overhead, step_hooks
from dfx_agent.shim.torch.overhead import Overhead
from dfx_agent.wire import Identity, SegmentReader
from dfx_agent.wire.records import CALIBRATION, GAUGE, KIND_MASK

SECOND = 10**9


@pytest.fixture
def writer(dfx_dir) -> Recorder:
    return Recorder(str(dfx_dir), Identity(run="r", role="trainer", rank=0))


@pytest.fixture
def reader(writer) -> Iterator[SegmentReader]:
    with closing(SegmentReader(writer.path)) as segment:
        yield segment


@pytest.fixture
def hooks(monkeypatch) -> dict[str, PatchSet]:
    """Hooks as the guest's, all at work, in a registry of their own."""
    monkeypatch.setattr(patches, "registry", {})
    made = {}
    for name in (*overhead._DETAILS, *overhead._COLLECTIVES):
        made[name] = PatchSet(name)
        made[name].resume("active")
    return made


def seconds(account: Overhead, writer: Recorder, begin: int, end: int, num_events: int = 0) -> None:
    for second in range(begin, end):
        for _ in range(num_events):
            writer.scalar("x", 1.0, None)
        account.account(writer, second * SECOND)


def ratios(reader: SegmentReader) -> list[float]:
    return [r[3] for r in reader.poll() if r[8] & KIND_MASK == GAUGE]


def test_a_window_of_work_makes_one_gauge_that_grows_with_the_events(writer, reader):
    seconds(Overhead(), writer, 0, 11)
    seconds(Overhead(), writer, 0, 11, num_events=1000)
    idle, busy = ratios(reader)
    assert 0 < idle < busy < 0.1
    # 10,000 records in 10 s, each of 0.1 us at least
    assert busy - idle > 1e-4


def test_the_costs_are_measured_with_records_that_nobody_takes_for_events(writer, reader):
    seconds(Overhead(), writer, 0, 6)
    kinds = [r[8] & KIND_MASK for r in reader.poll()]
    # of 6 calls 2 are a record, 2 a span, 2 the number of a group, and there is none
    assert kinds == [CALIBRATION] * 4
    assert not reader.inflight()


def test_no_window_says_nothing(writer, reader):
    account = Overhead()
    seconds(account, writer, 0, 9)
    account.begin_anew()
    seconds(account, writer, 9, 18)
    assert ratios(reader) == []


def test_above_the_budget_details_go_first_then_the_collectives(writer, reader, hooks, monkeypatch):
    monkeypatch.setenv("DFX_MAX_OVERHEAD", "0.0001%")
    monkeypatch.setattr(step_hooks.seen, "has_details", True)
    account = Overhead()
    seconds(account, writer, 0, 11, num_events=100)
    active = {name for name, hook in hooks.items() if hook.is_active}
    assert active == {*overhead._COLLECTIVES}
    assert step_hooks.open_stage("forward") is None
    seconds(account, writer, 11, 31, num_events=100)
    assert not any(hook.is_active for hook in hooks.values())
    said = [r[3] for r in reader.poll() if reader.name(r[9]) == "guest/given_up"]
    assert said == [1.0, 2.0]


def test_below_the_budget_everything_stays(writer, hooks, monkeypatch):
    monkeypatch.setenv("DFX_MAX_OVERHEAD", "90%")
    seconds(Overhead(), writer, 0, 40, num_events=100)
    assert all(hook.is_active for hook in hooks.values())


def test_another_budget_brings_back_what_was_given_up_and_says_so(
    writer, reader, hooks, monkeypatch
):
    monkeypatch.setattr(overhead, "allowed_ratio", 1e-9)
    monkeypatch.setattr(step_hooks.seen, "has_details", True)
    hooks["ddp"].resume("failed")  # was never at work
    account = Overhead()
    seconds(account, writer, 0, 31, num_events=100)
    assert not any(hook.is_active for hook in hooks.values())
    monkeypatch.setattr(overhead, "allowed_ratio", 0.9)
    seconds(account, writer, 31, 60, num_events=100)
    assert {name for name, hook in hooks.items() if hook.is_active} == {*hooks} - {"ddp"}
    assert hooks["ddp"].state == "failed"
    assert step_hooks.seen.has_details
    said = [r[3] for r in reader.poll() if reader.name(r[9]) == "guest/given_up"]
    assert said == [1.0, 2.0, 0.0]
    monkeypatch.setattr(overhead, "allowed_ratio", 1e-9)
    seconds(account, writer, 60, 66, num_events=100)
    active = {name for name, hook in hooks.items() if hook.is_active}
    assert active == {*overhead._COLLECTIVES} - {"ddp"}


def test_the_agents_budget_goes_before_the_environments(writer, hooks, monkeypatch):
    monkeypatch.setenv("DFX_MAX_OVERHEAD", "0.0001%")
    monkeypatch.setattr(overhead, "allowed_ratio", 0.9)
    seconds(Overhead(), writer, 0, 40, num_events=100)
    assert all(hook.is_active for hook in hooks.values())
