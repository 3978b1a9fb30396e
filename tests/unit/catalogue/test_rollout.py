"""The share of requests that time out, from what a job reports about failures."""

import pytest

from dfx_agent.exporters.prometheus.exporter import run_samples
from dfx_agent.snapshot import Moments, RunRow, ScalarRow


def told(metric, value, step=7, **labels):
    return ScalarRow("key", metric, labels, step, 200.0, Moments(1, value, value, value))


def failed(why, value, step=7, **labels):
    return told("dfx_step_rollout_failures", value, step, why=why, **labels)


def ratio(*scalars):
    run = RunRow("r", "verl", 0, 1.0, (), (), scalars)
    rows = run_samples(run, frozenset({"dfx_rollout_timeout_ratio"}), "n").values()
    return [value for row in rows for _, value in row]


SAMPLES = told("dfx_step_samples", 252.0)


@pytest.mark.parametrize("why", ["timeout", "ReadTimeout", "timed_out", "TimeoutError", "time out"])
def test_one_request_of_256_that_timed_out_counts(why):
    assert ratio(SAMPLES, failed(why, 1.0), failed("ConnectError", 3.0)) == [1 / 256]


def test_other_failures_are_no_timeouts():
    assert ratio(SAMPLES, failed("ConnectError", 4.0)) == [0.0]


def test_only_failures_of_the_step_count():
    assert ratio(SAMPLES, failed("timeout", 9.0, step=6)) == [0.0]


def test_samples_that_the_rollout_returned_come_before_those_that_are_trained():
    returned = told("dfx_rollouter_samples", 99.0)
    assert ratio(SAMPLES, returned, failed("timeout", 1.0)) == [0.01]


def test_unknown_is_not_zero():
    assert ratio(SAMPLES) == []
    assert ratio(failed("timeout", 1.0)) == []
    assert ratio(SAMPLES, failed("timeout", 1.0, env="math")) == [], "of one environment"
