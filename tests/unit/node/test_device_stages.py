"""Samples of devices joined with the stage that a process was in at that time."""

from __future__ import annotations

from dfx_agent.node.device_stages import DeviceStages, Figures, Sample, merged
from dfx_agent.node.time.account import SpanEvent, TimeAccount
from dfx_agent.wire.records import STAGE, WAIT

SECOND = 10**9
NAME = "nvidia:0"


def ended(account: TimeAccount, *spans: tuple[int, str, float, float, int]) -> None:
    """(kind, name, begin, end in seconds, number of the span around it)."""
    rows = {
        number: (int(begin * SECOND), number, int(end * SECOND), parent, kind, name)
        for number, (kind, name, begin, end, parent) in enumerate(spans, start=1)
    }
    account.add(rows)


def sample(begin: float, end: float, **figures: float) -> Sample:
    return Sample(int(begin * SECOND), int(end * SECOND), Figures(**figures))


def by_stage(stages: DeviceStages):
    return {row.stage: row for row in stages.rows()}


def test_a_sample_is_of_the_stage_that_it_lay_in():
    account, stages = TimeAccount(0), DeviceStages()
    stages.use((NAME,), {})
    ended(account, (STAGE, "rollout", 0, 2, 0), (STAGE, "actor_update", 2, 4, 0))
    for begin, busy in ((0, 0.1), (1, 0.3), (2, 0.8), (3, 0.9)):
        stages.add(sample(begin, begin + 1, sm_active_ratio=busy, used_bytes=10 * begin))
    stages.advance(account, 4 * SECOND)
    rows = by_stage(stages)
    assert rows["rollout"].sm_active_ratio == 0.2
    assert rows["actor_update"].sm_active_ratio == 0.8500000000000001
    assert (rows["rollout"].num_samples, rows["rollout"].seconds) == (2, 2.0)
    assert rows["actor_update"].used_bytes == 25
    assert rows["rollout"].tensor_active_ratio is None, "nobody told it"


def test_means_are_over_time_and_not_over_samples():
    account, stages = TimeAccount(0), DeviceStages()
    ended(account, (STAGE, "rollout", 0, 4, 0))
    stages.add(sample(0, 3, utilization_ratio=0.2))
    stages.add(sample(3, 4, utilization_ratio=1.0))
    stages.advance(account, 4 * SECOND)
    assert by_stage(stages)["rollout"].utilization_ratio == 0.4


def test_a_wait_belongs_to_the_stage_around_it_and_the_rest_is_outside_all():
    account, stages = TimeAccount(0), DeviceStages()
    ended(account, (STAGE, "rollout", 0, 1, 0), (WAIT, "queue", 0.1, 0.9, 1))
    stages.add(sample(0, 1, utilization_ratio=0.0))
    stages.add(sample(1, 2, utilization_ratio=0.5))
    stages.advance(account, 2 * SECOND)
    rows = by_stage(stages)
    assert (rows["rollout"].utilization_ratio, rows[""].utilization_ratio) == (0.0, 0.5)


def test_of_a_sample_over_two_stages_the_longer_one_has_it():
    account, stages = TimeAccount(0), DeviceStages()
    ended(account, (STAGE, "rollout", 0, 0.3, 0), (STAGE, "actor_update", 0.3, 1, 0))
    stages.add(sample(0, 1, utilization_ratio=0.6))
    stages.advance(account, SECOND)
    rows = by_stage(stages)
    assert "rollout" not in rows, "what a stage shorter than the sample did is not known"
    assert (rows["actor_update"].num_samples, rows["actor_update"].seconds) == (1, 0.7)


def test_a_sample_waits_until_the_process_is_accounted_and_an_open_stage_counts():
    account, stages = TimeAccount(0), DeviceStages()
    account.note_open([SpanEvent(1, 0, STAGE, "rollout", 0, None)])
    stages.add(sample(0, 1, utilization_ratio=0.5))
    stages.advance(account, SECOND // 2)
    assert stages.rows() == ()
    stages.advance(account, 2 * SECOND)
    assert by_stage(stages)["rollout"].num_samples == 1


def test_the_account_is_the_same_with_and_without_samples():
    plain, cut, stages = TimeAccount(0), TimeAccount(0), DeviceStages()
    spans = (STAGE, "rollout", 0, 3, 0), (WAIT, "queue", 1, 2.5, 1), (STAGE, "reward", 3, 5, 0)
    for account in (plain, cut):
        ended(account, *spans)
    for begin in range(5):
        stages.add(sample(begin, begin + 1, utilization_ratio=1.0))
    plain.advance(6 * SECOND)
    stages.advance(cut, 6 * SECOND)
    assert plain.totals() == cut.totals()


def test_stages_keep_their_order_when_another_one_becomes_the_longest():
    account, stages = TimeAccount(0), DeviceStages()
    ended(
        account, (STAGE, "rollout", 0, 2, 0), (STAGE, "reward", 2, 5, 0),
        (STAGE, "rollout", 5, 10, 0),
    )  # fmt: skip
    order = []
    for begin in range(10):
        stages.add(sample(begin, begin + 1, utilization_ratio=1.0))
        stages.advance(account, (begin + 1) * SECOND)
        order.append([row.stage for row in stages.rows()])
    assert order == [["rollout"]] * 2 + [["rollout", "reward"]] * 8


def test_a_process_without_devices_has_no_rows():
    account, stages = TimeAccount(0), DeviceStages()
    stages.advance(account, SECOND)
    assert (stages.rows(), stages.state()) == ((), None)


def test_several_devices_share_their_ratios_and_add_up_their_power_and_memory():
    reported = merged([Figures(0.2, power_watts=300.0), Figures(0.6, 0.5, used_bytes=7.0)])
    assert reported == Figures(0.4, 0.5, None, 300.0, 7.0, None, None)


def test_the_state_is_of_the_last_minute():
    stages = DeviceStages()
    stages.use((NAME,), {})
    stages.add(
        Sample(0, 10 * SECOND, Figures(clock_hertz=9e8, throttled_ratio=1.0), ("power cap",))
    )
    for n in range(10, 80, 10):
        late = Figures(clock_hertz=1.8e9, throttled_ratio=0.0)
        stages.add(Sample(n * SECOND, (n + 10) * SECOND, late))
    state = stages.state()
    assert state is not None
    assert (state.clock_hertz, state.throttled_ratio, state.reasons) == (1.8e9, 0.0, ())
