"""The bottleneck verdict at /metrics: its state, its cost, what each component costs."""

import pytest

from dfx_agent.catalogue import bottleneck as catalogue
from dfx_agent.catalogue.spec import metrics_of
from dfx_agent.exporters.prometheus.exporter import run_samples
from dfx_agent.snapshot import Bottleneck, PipelineCause, RunRow, StepPart

ENGINE = "rollout replica 1"
SLOW = PipelineCause("rollout", ENGINE, "is slow", 4.2, "times", kind="slow engine")
QUEUED = PipelineCause("rollout", ENGINE, "9 requests wait", 9.0, "requests", kind="slow engine")
AGAIN = PipelineCause("rollout", ENGINE, "and later", 1.5, "times", kind="slow engine")
UNSIZED = PipelineCause("tool", "tool", "slow", None, "seconds a call", 7, kind="slow tool")


def samples(bottleneck):
    names = frozenset(metric.name for metric in metrics_of(catalogue))
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
    reported = Bottleneck(
        "found", "rollout-bound", "trainer", "rollout", 2.0, 0.5, 4.0, causes=causes
    )
    of_engine = "trainer", "rollout", "slow engine", ENGINE
    of_tool = "trainer", "tool", "slow tool", "tool", "seconds a call"
    assert samples(reported) == {
        ("state", "trainer", "rollout", "found", ENGINE): 1.0,
        ("cost_seconds", "trainer", "rollout"): 2.0,
        ("cost_ratio", "trainer", "rollout"): 0.5,
        ("cause_active", *of_engine, "times"): 1.0,
        ("cause_active", *of_engine, "requests"): 1.0,
        ("cause_active", *of_tool): 1.0,
        ("cause_amount", *of_engine, "times"): 4.2,
        ("cause_amount", *of_engine, "requests"): 9.0,
        ("cause_since_step", *of_tool): 7.0,
    }


@pytest.mark.parametrize("state", ["clear", "insufficient evidence"])
def test_what_is_not_found_costs_nothing_that_is_known(state):
    assert samples(Bottleneck(state, "balanced", "trainer")) == {
        ("state", "trainer", "", state, ""): 1.0
    }


def test_before_it_is_judged_there_is_no_series():
    assert samples(None) == {}


def test_the_parts_of_a_step_are_shares():
    parts = (
        StepPart("waiting for other ranks", "wait", 3.0, 0.75),
        StepPart("update", "work", 1.0, 0.25),
    )
    run = RunRow("r", "verl", 0, 1.0, (), (), (), bottleneck=Bottleneck("clear", "", parts=parts))
    rows = run_samples(run, frozenset({"dfx_step_share_ratio"}), "a")["dfx_step_share_ratio"]
    shares = {(labels["part"], labels["kind"]): value for labels, value in rows}
    assert shares == {("waiting for other ranks", "wait"): 0.75, ("update", "work"): 0.25}
