"""What the orchestrator tells of a step."""

from collections import Counter

import pytest

from dfx_agent.catalogue.native import load
from dfx_agent.catalogue.spec import by_name
from examples.async_rl.groups import Group, Sample
from examples.async_rl.settings import GROUP_SIZE, TOKEN_BUDGET
from examples.async_rl.step_report import StepReport


def group(environment, versions, reward, finished_version):
    sample = Sample([1], [1] * len(versions), [0.0] * len(versions), versions, reward)
    sample.num_turns, sample.tool_seconds = 2, 1.0
    return Group(0, environment, 0, [sample], finished_version)


@pytest.fixture
def told():
    report = StepReport()
    report.finished(0, [TimeoutError()])
    report.finished(3, [])
    groups = [group("a", [3] * 20, 1.0, 4), group("b", [2, 4], 0.0, 5)]
    groups[0].samples[0].num_resumed = 2
    report.batch(groups, version=6)
    dropped = Counter(stale=2, zero_advantage=1, error=1)
    return report.values(5, dropped, Counter({7: 2}), num_stale=9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("training/off_policy/trajectory_staleness/mean", 2.5),
        ("training/off_policy/trajectory_staleness_worst/mean", 3.5),
        ("pipeline/lag/in_flight/max", 3),
        ("pipeline/lag/in_queue/mean", 1.5),
        ("fully_async/partial/partial_ratio", 1.0),
        ("fully_async/partial/max_partial_span", 2),
        ("pipeline/reward/all/mean", 0.5),
        ("pipeline/reward/all/std", 0.5),
        ("pipeline/reward/b/max", 0.0),
        ("pipeline/turn_seconds/a/tool/mean", 0.5),
        ("fully_async/monitor/queue/mq_queue_size", 5),
        ("fully_async/count/dropped_stale_samples", 9),
        ("training/off_policy/evicted_samples", 4),
        ("training/off_policy/evicted_samples_staleness/max", 7),
        ("training/filter_groups/evicted_samples", 1),
        ("response/aborted_ratio", 0.25),
        ("pipeline/errors/TimeoutError", 1),
        # the lags are 3 and 4, and 3 and 2
        ("pipeline/lag/oldest/share/3", 0.5),
        ("pipeline/lag/oldest/share/4-7", 0.5),
        ("pipeline/lag/newest/share/2", 0.5),
        ("pipeline/lag/newest/share/8+", 0.0),
        # 2 dropped and 2 evicted, 2 trained on
        ("pipeline/stale/ratio", 4 / 6),
        ("pipeline/stale/dropped", 2 * GROUP_SIZE),
        ("pipeline/stale/evicted", 2 * GROUP_SIZE),
        # a group of one sample has no spread: 1 dropped and 2 trained on
        ("pipeline/groups/zero_advantage", 1.0),
        ("pipeline/groups/survivors/min", 0.0),
        ("pipeline/groups/survivors/mean", 0.5),
        # one sample of 20 tokens, cut twice, and one of 2
        ("pipeline/partial/budget_hits", 2),
        ("pipeline/partial/budget_hit_ratio", 0.5),
        ("pipeline/partial/resumed", 1),
        ("pipeline/partial/regenerated_tokens", 20 - TOKEN_BUDGET),
    ],
)
def test_lags_counts_and_shares(told, name, expected):
    assert told[name] == pytest.approx(expected)


def test_a_step_without_a_batch_reports_no_lag():
    reported = StepReport().values(0, Counter(), Counter(), num_stale=0)

    assert reported["response/aborted_ratio"] == 0.0
    assert not any(word in name for name in reported for word in ("staleness", "share", "ratio/"))
    assert reported.keys().isdisjoint({"pipeline/stale/ratio", "pipeline/groups/zero_advantage"})


def test_every_name_is_a_series_of_its_own(told):
    series = {}
    for name in told:
        found = load("verl").find(name)
        assert found is not None, name
        assert set(found.labels) <= set(by_name()[found.metric].labels)
        assert series.setdefault((found.metric, *sorted(found.labels.items())), name) == name
