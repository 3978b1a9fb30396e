"""SPECs of the asynchronous pipeline."""

import pytest

from dfx_agent.commands.demo.faults import Fault, FaultError
from examples.async_rl.faults import COMPONENTS, GRAMMAR, component, due, parse


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("slow_replica:1:2.5", Fault("slow_replica", replica=1, factor=2.5, step=10)),
        ("slow_replica:1:2.5:4", Fault("slow_replica", replica=1, factor=2.5, step=4)),
        ("slow_tool:0.5", Fault("slow_tool", seconds=0.5)),
        ("stuck_server:0:3", Fault("stuck_server", replica=0, step=3)),
        ("slow_barrier:1:2", Fault("slow_barrier", rank=1, seconds=2.0)),
        ("blocked_loop:1.5", Fault("blocked_loop", seconds=1.5)),
        ("stale_samples:6", Fault("stale_samples", step=6)),
        ("starved_learner", Fault("starved_learner")),
        ("slow_weight_sync:2", Fault("slow_weight_sync", seconds=2.0)),
        ("leak:8:2", Fault("leak", mib_per_step=8.0, step=2)),
        ("nan:7", Fault("nan", step=7)),
    ],
)
def test_parse(spec, expected):
    assert parse([spec]) == (expected,)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("straggler:1:2", "no such fault; choose from slow_replica:REPLICA:FACTOR"),
        ("slow_tool", r"expected slow_tool:SECONDS\[:STEP\]"),
        ("slow_tool:0", "SECONDS must be a number above 0, not '0'"),
        ("slow_replica:2:2", "there is no replica 2; there are 2, counted from 0"),
        ("slow_replica:-1:2", "REPLICA must be a whole number from 0"),
        ("slow_barrier:2:1", "there is no rank 2 in a run of 2"),
    ],
)
def test_a_wrong_spec_is_reported_in_one_line(spec, message):
    with pytest.raises(FaultError, match=message) as caught:
        parse([spec])
    assert "\n" not in str(caught.value)


def test_each_fault_has_a_component():
    assert list(COMPONENTS) == list(GRAMMAR)
    assert component(Fault("slow_replica", replica=1)) == "rollout replica 1"


def test_a_fault_is_due_from_its_step_on():
    faults = parse(["slow_tool:1:5", "blocked_loop:1:5"])

    assert due(faults, "slow_tool", 4) == []
    assert due(faults, "slow_tool", 5) == [faults[0]]
