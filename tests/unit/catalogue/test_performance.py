"""Samples per second: told samples over the time of their step, and nothing guessed."""

import pytest

from dfx_agent.catalogue.performance import samples_per_second
from dfx_agent.exporters.prometheus.exporter import run_samples
from dfx_agent.snapshot import Moments, RunRow, ScalarRow, StepRow


def step(number, seconds, role="trainer"):
    return StepRow(number, role, 100.0, 100.0 + seconds, (), None, ())


def told(number, samples=64.0, metric="dfx_step_samples", ranks=1, **labels):
    moments = Moments(ranks, samples * ranks, samples, samples)
    return ScalarRow("progress/rollouts", metric, labels, number, 200.0, moments)


def rate(scalars, steps):
    return samples_per_second(RunRow("r", "prime_rl", 0, 1.0, (), tuple(steps), tuple(scalars)))


@pytest.mark.parametrize("ranks", [1, 4])
def test_samples_of_a_step_over_its_time(ranks):
    assert rate([told(7, ranks=ranks)], [step(6, 1.0), step(7, 4.0)]) == 16.0


def test_the_slowest_role_sets_the_time():
    assert rate([told(7)], [step(7, 4.0), step(7, 8.0, "orchestrator")]) == 8.0


@pytest.mark.parametrize(
    ("scalars", "steps"),
    [
        ([], [step(7, 4.0)]),
        ([told(8)], [step(7, 4.0)]),  # its step is not over
        ([told(None)], [step(7, 4.0)]),
        ([told(7, metric="dfx_step_groups")], [step(7, 4.0)]),
        ([told(7, variant="rollouter")], [step(7, 4.0)]),
        ([told(7)], [step(7, 0.0)]),
        ([told(7)], []),
    ],
)
def test_what_is_not_told_has_no_rate(scalars, steps):
    assert rate(scalars, steps) is None


def test_it_is_exported():
    run = RunRow("r", "prime_rl", 0, 1.0, (), (step(7, 4.0),), (told(7),))
    found = run_samples(run, frozenset({"dfx_samples_per_second"}), "node-a")
    assert found == {"dfx_samples_per_second": [({"run": "r", "node": "node-a"}, 16.0)]}
