"""The bottleneck verdict at /metrics: its state, its cost, what each component costs."""

import pytest

from dfx_agent.catalogue.bottleneck import METRICS
from dfx_agent.exporters.prometheus.exporter import run_samples
from dfx_agent.snapshot import Bottleneck, PipelineCause, RunRow

SLOW = PipelineCause("rollout", "rollout replica 1", "replica 1 is slow", 4.2, "times")
QUEUED = PipelineCause("rollout", "rollout replica 1", "9 requests wait", 9.0, "requests")
AGAIN = PipelineCause("rollout", "rollout replica 1", "and later", 1.5, "times")
UNSIZED = PipelineCause("tool", "tool calculator", "slow, by how much is not known")


def samples(bottleneck):
    names = frozenset(metric.name for metric in METRICS)
    run = RunRow("r", "verl", 0, 1.0, (), (), (), bottleneck=bottleneck)
    found = {}
    for name, rows in run_samples(run, names, "node-a").items():
        for labels, value in rows:
            assert labels.pop("run") == "r"
            assert labels.pop("node") == "node-a"
            found[(name.removeprefix("dfx_bottleneck_"), *labels.values())] = value
    return found


def test_what_is_found_has_a_state_a_cost_and_causes():
    causes = (SLOW, QUEUED, AGAIN, UNSIZED)
    told = Bottleneck("found", "rollout-bound", "trainer", "rollout", 2.0, 0.5, 4.0, causes=causes)
    assert samples(told) == {
        ("state", "trainer", "rollout", "found", "rollout replica 1"): 1.0,
        ("cost_seconds", "trainer", "rollout"): 2.0,
        ("cost_ratio", "trainer", "rollout"): 0.5,
        ("cause_amount", "trainer", "rollout", "rollout replica 1", "times"): 4.2,
        ("cause_amount", "trainer", "rollout", "rollout replica 1", "requests"): 9.0,
    }


@pytest.mark.parametrize("state", ["clear", "insufficient evidence"])
def test_what_is_not_found_costs_nothing_that_is_known(state):
    assert samples(Bottleneck(state, "balanced", "trainer")) == {
        ("state", "trainer", "", state, ""): 1.0
    }


def test_before_it_is_judged_there_is_no_series():
    assert samples(None) == {}
