"""What the orchestrator tells of a step."""

from collections import Counter

import pytest

from dfx_agent.demo.async_pipeline.groups import Group, Sample
from dfx_agent.demo.async_pipeline.step_report import StepReport


def group(environment, versions, reward, finished_version):
    sample = Sample([1], [1] * len(versions), [0.0] * len(versions), versions, reward)
    sample.num_turns, sample.tool_seconds = 2, 1.0
    return Group(0, environment, 0, [sample], finished_version)


@pytest.fixture
def told():
    report = StepReport()
    report.finished(0, [TimeoutError()])
    report.finished(3, [])
    groups = [group("a", [3, 3], 1.0, 4), group("b", [2, 4], 0.0, 5)]
    report.batch(groups, version=6)
    dropped = Counter(stale=2, zero_advantage=1, error=1)
    return report.values(5, dropped, Counter({7: 2}), num_stale=9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("training/off_policy/trajectory_staleness/mean", 2.5),
        ("training/off_policy/trajectory_staleness_worst/mean", 3.5),
        ("off_policy/in_flight/max", 3),
        ("off_policy/in_queue/mean", 1.5),
        ("fully_async/partial/partial_ratio", 0.5),
        ("fully_async/partial/max_partial_span", 2),
        ("reward/all/mean", 0.5),
        ("reward/all/std", 0.5),
        ("reward/b/max", 0.0),
        ("timing/a/tool/mean", 1.0),
        ("fully_async/monitor/queue/mq_queue_size", 5),
        ("fully_async/count/dropped_stale_samples", 9),
        ("training/off_policy/evicted_samples", 4),
        ("training/off_policy/evicted_samples_staleness/max", 7),
        ("training/filter_groups/evicted_samples", 1),
        ("response/aborted_ratio", 0.25),
        ("errors/TimeoutError", 1),
    ],
)
def test_lags_counts_and_shares(told, name, expected):
    assert told[name] == pytest.approx(expected)


def test_a_step_without_a_batch_tells_no_lag():
    told = StepReport().values(0, Counter(), Counter(), num_stale=0)

    assert told["response/aborted_ratio"] == 0.0
    assert not any("staleness" in name for name in told)
