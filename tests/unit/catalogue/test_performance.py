"""Samples per second: samples of a step over its time, by who knows them best."""

from dataclasses import replace

import pytest
from prometheus_page import rank_row

from dfx_agent.catalogue.performance import samples_per_second
from dfx_agent.exporters.prometheus.exporter import run_samples
from dfx_agent.snapshot import (
    LedgerRow,
    LedgerState,
    Moments,
    RunRow,
    ScalarRow,
    StepCell,
    StepRow,
    TimeSplit,
)


def step(number, seconds, role="trainer", cells=()):
    return StepRow(number, role, 100.0, 100.0 + seconds, (), None, cells)


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
        ([told(None)], [step(7, 4.0)]),
        ([told(7, metric="dfx_step_groups")], [step(7, 4.0)]),
        ([told(7, variant="rollouter")], [step(7, 4.0)]),
        ([told(7)], [step(7, 0.0)]),
        ([told(7)], []),
    ],
)
def test_what_is_not_told_has_no_rate(scalars, steps):
    assert rate(scalars, steps) is None


def test_of_a_step_that_is_not_shown_the_time_is_the_mean_of_the_latest_8():
    """Where steps last less than a reading, the newest told one is never among the closed."""
    assert rate([told(8)], [step(6, 2.0), step(7, 6.0)]) == 16.0
    slow_at_first = [step(n, 9.0) for n in range(40)] + [step(40 + n, 2.0) for n in range(8)]
    assert rate([told(48)], slow_at_first) == 32.0
    assert rate([told(99)], [step(7, 0.2), step(7, 0.4, "rollout")]) == pytest.approx(160)


def with_ledger(number, num_samples, steps, scalars=()):
    ledger = LedgerState(1, 0, 0, (), number, num_samples)
    run = RunRow("r", "", 0, 1.0, (), tuple(steps), tuple(scalars), ledger=ledger)
    return samples_per_second(run)


def test_what_is_told_goes_before_the_ledger_and_that_before_the_models():
    rows = [step(7, 4.0, cells=cells(96.0))]
    assert with_ledger(7, 32, rows, [told(7)]) == 16.0
    assert with_ledger(7, 32, rows) == 8.0
    assert with_ledger(None, None, rows) == 24.0


def cells(*counts):
    return tuple(StepCell(str(rank), TimeSplit(), {}, n) for rank, n in enumerate(counts))


def test_rows_of_the_models_add_up_over_ranks_that_have_samples_of_their_own():
    rows = (step(7, 4.0, cells=cells(8.0, 24.0, None)),)
    run = RunRow("r", "", 0, 1.0, (), rows, ())
    assert samples_per_second(run) == 8.0
    ranks = (
        rank_row(role="trainer", rank="0", place={"data": 1, "tensor": 0}),
        rank_row(role="trainer", rank="1", place={"data": 1, "tensor": 1}),
    )
    assert samples_per_second(replace(run, ranks=ranks)) == 2.0


def test_it_is_exported():
    run = RunRow("r", "prime_rl", 0, 1.0, (), (step(7, 4.0),), (told(7),))
    found = run_samples(run, frozenset({"dfx_samples_per_second"}), "node-a")
    assert found == {"dfx_samples_per_second": [({"run": "r", "node": "node-a"}, 16.0)]}


def boundary(number, num_samples, num_tokens, name="reward"):
    row = LedgerRow(name, number, num_samples, None, None, None, "0", "0", 1, 0, 0, 0, 0, None)
    return (replace(row, num_tokens=num_tokens),)


def timed(number, **seconds_by_rank):
    cells = [StepCell(rank, TimeSplit(stage_seconds={"reward": seconds}), {})
             for rank, seconds in seconds_by_rank.items()]  # fmt: skip
    return step(number, 9.0, cells=tuple(cells))


def stage_rates(run):
    names = "dfx_stage_samples_per_second", "dfx_stage_tokens_per_second"
    found = run_samples(run, frozenset(names), "n")
    rows = {name: found.get(name, []) for name in names}
    return [{(row["role"], row["stage"]): value for row, value in rows[name]} for name in names]


def test_throughput_of_a_stage_is_what_crossed_its_boundary_over_its_time():
    ranks = (
        rank_row(rank="0", ledger=boundary(7, 64, 900)),
        rank_row(rank="1", ledger=boundary(7, 64, 300)),
    )
    steps = (timed(6, a=0.5, b=1.0), timed(7, a=2.0, b=4.0))
    run = RunRow("r", "", 0, 1.0, ranks, steps, ())
    place = "trainer", "reward"
    assert stage_rates(run) == [{place: 128 / 4.0}, {place: 1200 / 4.0}]
    replica = replace(ranks[1], place={"tensor": 1})
    assert stage_rates(replace(run, ranks=(ranks[0], replica))) == [{place: 16}, {place: 225}]
    open_step = tuple(replace(rank, ledger=boundary(8, 64, None)) for rank in ranks)
    assert stage_rates(replace(run, ranks=open_step)) == [{place: 128 / 2.5}, {}]
    assert stage_rates(replace(run, steps=())) == [{}, {}]
    for name in ("handover", "actor_update"):
        other = tuple(replace(rank, ledger=boundary(7, 64, 1, name)) for rank in ranks)
        assert stage_rates(replace(run, ranks=other)) == [{}, {}]
