"""The step-clocked detector: figures worked out by hand, scenes, and properties."""

import dataclasses
import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_json import through_json
from training_curves import HEALTHY, active, collapsed, healthy, signal, trained

from dfx_agent.judge.divergence.bank import LATCH_STEPS, SignalBank
from dfx_agent.judge.divergence.signal import Cusum
from dfx_agent.judge.divergence.symptoms import SIGNALS

NAMES = [spec.name for spec in SIGNALS]


# ------------------------------------------------------------------------------------- one signal


def test_z_is_the_log_distance_from_the_median_without_the_last_two():
    bank = SignalBank()
    for step in range(14):
        state = bank.observe(step, {"grad_norm": math.exp(1.0 if step % 2 else 0.0)})
    before = signal(state, "grad_norm").cusum_up
    # baseline: 6 zeros and 6 ones; median 0.5, MAD 0.5, scale 1.4826 x 0.5, wide for 12 rows
    scale = 1.4826 * 0.5 * (1 + 5 / 11)
    state = bank.observe(14, {"grad_norm": math.exp(2.0)})
    row = signal(state, "grad_norm")
    assert row.z == pytest.approx((2.0 - 0.5) / scale)
    assert row.baseline_high == pytest.approx(math.exp(0.5 + 2 * scale))
    assert row.is_baseline_ready
    assert row.cusum_up == pytest.approx(before + row.z - 1)


@pytest.mark.parametrize(("num_rows", "scale"), [(5, 0.5), (8, 0.5 - 3 / 9 * 0.25), (14, 0.25)])
def test_the_scale_of_a_cold_baseline_is_wider(num_rows, scale):
    bank = SignalBank()
    for step in range(num_rows):
        state = bank.observe(step, {"grad_norm": 1.0})
    assert not signal(state, "grad_norm").is_baseline_ready, "a constant cannot be judged"
    row = signal(bank.observe(num_rows, {"grad_norm": math.e}), "grad_norm")
    assert row.z == pytest.approx(1 / scale)
    assert row.is_baseline_ready is (num_rows >= 14), "it has varied"


@pytest.mark.parametrize(("median", "scale"), [(0.1, 0.05), (-3.0, 0.3)])
def test_the_reward_is_scored_raw_with_a_floor_of_a_tenth_of_its_median(median, scale):
    bank = SignalBank()
    for step in range(14):
        bank.observe(step, {"reward": median})
    row = signal(bank.observe(14, {"reward": median - 1.0}), "reward")
    assert row.z == pytest.approx(-1 / scale)


def test_values_below_the_materiality_floor_are_all_the_same():
    bank = SignalBank()
    for step in range(20):
        state = bank.observe(step, {"policy_kl": (-1) ** step * 1e-6 * step})
    assert signal(state, "policy_kl").z == 0


def test_the_first_score_comes_with_the_sixth_step():
    bank = SignalBank()
    zs = [signal(bank.observe(i, {"entropy": 1.0}), "entropy").z for i in range(6)]
    assert zs == [None] * 5 + [0]


def test_one_outlier_never_alarms_and_two_in_a_row_do():
    for num_outliers, expected in ((1, {}), (2, {"grad_norm": "up"})):
        bank, rng = trained(80)
        for step in range(80, 80 + num_outliers):
            state = bank.observe(step, {**healthy(rng), "grad_norm": 1e6})
        assert active(state) == expected


def test_a_shift_of_three_sigma_alarms_in_five_steps_and_says_where_it_began():
    bank = SignalBank()
    for step in range(80):
        bank.observe(step, {"entropy": 1.0})
    shifted = {"entropy": math.exp(0.12 * 2.9)}
    states = [bank.observe(step, shifted) for step in range(80, 85)]
    assert [active(state) for state in states] == [{}, {}, {}, {}, {"entropy": "up"}]
    onsets = {row.direction: row.onset_step for row in states[-1].symptoms}
    assert onsets == {"up": 80, "down": None}


def test_a_jump_begins_where_it_is_and_not_where_a_small_drift_before_it_did():
    """As in the demo: z near 1.5 for 18 steps, then the learning rate is multiplied by 100."""
    cusum = Cusum()
    zs = [0, 1.4, 1.7, 1.5, 0.5, 0.9, 1.0, 1.7, 0.8, 1.9, 1.8, 0.6, 1.9, 0.3, 2.6, 4.7, 9.0]
    onsets = [onset for step, z in enumerate(zs) if (onset := cusum.add(step, z)) is not None]
    assert onsets == [14]


def test_a_shift_too_small_to_be_sudden_begins_where_the_sum_was_last_0():
    cusum = Cusum()
    zs = [0, 0, *([1.8, 0.9] * 20)]
    onsets = [onset for step, z in enumerate(zs) if (onset := cusum.add(step, z)) is not None]
    assert onsets[0] == 2


def test_a_gradient_norm_of_zero_says_nothing():
    bank, rng = trained(80)
    before = signal(bank.observe(80, healthy(rng)), "grad_norm")
    for step in range(81, 200):
        state = bank.observe(step, {**healthy(rng), "grad_norm": 0.0})
    row = signal(state, "grad_norm")
    assert row.z is None
    assert row.cusum_up == before.cusum_up
    assert active(state) == {}


def test_a_step_without_the_value_is_not_scored_and_changes_no_sum():
    bank, rng = trained(80)
    before = signal(bank.observe(80, {**healthy(rng), "entropy": 1.5}), "entropy")
    after = signal(bank.observe(81, {}), "entropy")
    assert before.cusum_up > 0
    assert (after.value, after.z, after.cusum_up) == (None, None, before.cusum_up)


# ------------------------------------------------------------------------------------ the compound


def test_healthy_noise_never_latches():
    for seed in range(8):
        bank, rng = SignalBank(), random.Random(seed)
        assert not any(bank.observe(step, healthy(rng)).is_latched for step in range(400))


def test_a_collapse_latches_within_five_steps_and_names_its_onset():
    bank, rng = trained(100)
    states = [bank.observe(step, collapsed(rng)) for step in range(100, 105)]
    latched = [state for state in states if state.is_latched]
    assert latched
    assert active(latched[-1]) == {"entropy": "up", "reward": "down", "length": "down"}
    onsets = [row.onset_step for row in latched[-1].symptoms if row.is_active]
    assert all(98 <= onset <= 101 for onset in onsets)


def test_a_collapse_in_the_first_steps_is_seen_too():
    bank, rng = trained(4)
    states = [bank.observe(step, collapsed(rng)) for step in range(4, 12)]
    assert states[-1].is_latched


def test_a_symptom_lasts_ten_steps():
    bank = SignalBank()
    for step in range(80):
        bank.observe(step, {"entropy": 1.0, "reward": 0.5})
    bank.observe(80, {"entropy": 9.0, "reward": 0.5})
    steps = [80 + i for i in range(1, 30)]
    values = itertools.chain([9.0], itertools.repeat(1.0))
    states = [
        bank.observe(s, {"entropy": v, "reward": 0.5}) for s, v in zip(steps, values, strict=False)
    ]
    assert sum("entropy" in active(state) for state in states) == 10


def test_a_rising_reward_vetoes_three_families():
    """Fast learning: KL, gradient and entropy move, and the reward rises."""
    for gain, expected in ((0.0, True), (0.4, False)):
        bank, rng = trained(100)
        for step in range(100, 106):
            values = healthy(rng)
            moved = {name: values[name] * 8 for name in ("policy_kl", "grad_norm", "entropy")}
            reward = values["reward"] + gain
            state = bank.observe(step, {**values, **moved, "reward": reward})
            # one good row is no proof
            assert state.is_reward_improving is (gain > 0 and step > 100)
        assert state.is_latched is expected


# ------------------------------------------------------------------------------------------ latch


def test_a_dead_run_stays_latched_and_its_baseline_stays_that_of_the_healthy_run():
    bank, rng = trained(100)
    states = [bank.observe(step, collapsed(rng)) for step in range(100, 220)]
    latched = [state for state in states if state.is_latched]
    assert latched[-1] is states[-1]
    highs = {signal(state, "entropy").baseline_high for state in latched[1:]}
    assert len(highs) == 1
    assert highs.pop() < 1.0
    assert all(state.latched_step == latched[0].step for state in latched)


def test_the_latch_opens_after_sixteen_calm_steps():
    bank, rng = trained(100)
    for step in range(100, 110):
        state = bank.observe(step, collapsed(rng))
    assert state.is_latched
    values = dict(HEALTHY, reward=0.6, truncation=0.01)
    states = [bank.observe(step, values) for step in range(110, 130)]
    assert [state.is_latched for state in states].index(False) == 15
    assert active(states[-1]) == {}


def test_a_reward_above_its_band_has_not_fallen_and_ends_the_page():
    """The run learns on after an outage: entropy falls, and the reward is better than before."""
    bank, rng = trained(100)
    for step in range(100, 108):
        bank.observe(step, collapsed(rng))
    after = dict(HEALTHY, reward=0.95, truncation=0.01, entropy=0.2, response_length=900.0)
    states = [bank.observe(step, after) for step in range(108, 140)]
    assert [state.is_latched for state in states].index(False) <= 16
    assert "reward" not in active(states[-1])


def test_counts_of_a_family_continue_for_both_directions():
    bank, rng = trained(100)
    for step in range(100, 110):
        bank.observe(step, collapsed(rng))
    stored = replace(bank.save(), calm={"entropy": 7, "reward": 3})
    again = SignalBank()
    again.resume(stored)
    assert again.save().calm == {
        "divergence up": 0, "grad_norm up": 0, "entropy up": 7, "entropy down": 7,
        "reward down": 3, "length up": 0, "length down": 0, "reward up": 3,
    }  # fmt: skip


def test_steps_that_report_nothing_do_not_count_as_calm():
    bank, rng = trained(100)
    for step in range(100, 110):
        bank.observe(step, collapsed(rng))
    assert all(bank.observe(step, {}).is_latched for step in range(110, 150))


def test_a_symptom_in_its_last_step_is_held_when_the_latch_closes():
    bank = SignalBank()
    calm = {"entropy": 1.0, "reward": 0.5}
    for step in range(80):
        bank.observe(step, {**calm, "reward": 0.5 + 0.01 * (step % 2)})
    for step in range(80, 91):
        spike = {"entropy": 9.0} if step < 82 else {}
        drop = {"reward": -9.0} if step > 88 else {}
        state = bank.observe(step, {**calm, **spike, **drop})
        assert state.is_latched is (step == 90)
    assert active(bank.observe(91, calm)) == {"entropy": "up", "reward": "down"}


def test_the_latch_gives_up_after_its_time_and_learns_the_new_state():
    bank, rng = trained(100)
    states = [bank.observe(step, collapsed(rng)) for step in range(100, 300)]
    rows = [state.row for state in states if state.is_latched]
    assert rows == list(range(rows[0], rows[0] + LATCH_STEPS))
    assert active(states[-1]) == {}
    assert 2 < signal(states[-1], "entropy").baseline_high < 5


def test_the_operator_can_say_that_this_is_normal():
    bank, rng = trained(100)
    for step in range(100, 110):
        bank.observe(step, collapsed(rng))
    bank.reset()
    states = [bank.observe(step, collapsed(rng)) for step in range(110, 160)]
    assert not any(state.is_latched or active(state) for state in states)


# ------------------------------------------------------------------------------ restarts and drift


def test_what_is_normal_from_now_is_what_drift_is_measured_from():
    bank, rng = trained(80)
    assert signal(bank.latest_state, "entropy").drift_ratio is not None
    bank.reset()
    assert signal(bank.latest_state, "entropy").drift_ratio is None
    for step in range(80, 109):
        state = bank.observe(step, {**healthy(rng), "entropy": 0.8})
    assert signal(state, "entropy").drift_ratio == pytest.approx(1.0)


def test_a_repeated_step_changes_nothing():
    bank, rng = trained(80)
    state = bank.observe(80, healthy(rng))
    assert bank.observe(80, collapsed(rng)) is state


def test_after_a_restart_the_first_step_is_not_scored_and_the_replaced_steps_are_forgotten():
    bank, rng = trained(100)
    for step in range(100, 110):
        state = bank.observe(step, collapsed(rng))
    assert state.is_latched
    state = bank.observe(90, collapsed(rng))
    assert all(row.z is None for row in state.signals)
    assert active(state) == {}
    assert not state.is_latched
    assert not any(bank.observe(step, healthy(rng)).is_latched for step in range(91, 150))


def test_the_baseline_forgets_the_steps_that_a_restart_replaces():
    bank = SignalBank()
    for step in range(60):
        level = 1.0 if step < 30 else 5.0
        bank.observe(step, {"grad_norm": level + 0.1 * (step % 3)})
    bank.observe(30, {"grad_norm": 1.0})
    row = signal(bank.observe(31, {"grad_norm": 1.1}), "grad_norm")
    assert row.z == pytest.approx(0)


def test_a_restart_after_the_onset_does_not_clear_the_page():
    bank, rng = trained(100)
    for step in range(100, 110):
        bank.observe(step, collapsed(rng))
    assert bank.observe(107, collapsed(rng)).is_latched


def test_a_gap_in_the_steps_is_only_a_gap():
    bank, rng = trained(80)
    assert signal(bank.observe(10_000, healthy(rng)), "entropy").z is not None


def test_drift_compares_the_last_eight_with_the_fifth_to_twenty_first():
    bank = SignalBank()
    for step in range(100):
        level = 1.0 if step < 21 else 1.0 * 1.03 ** (step - 20)
        state = bank.observe(step, {"entropy": level, "truncation": 0.01 * step})
        ratio = signal(state, "entropy").drift_ratio
        assert (ratio is None) == (step < 28)
    assert ratio == pytest.approx(1.03 ** (79 - 3.5), rel=1e-3)
    row = signal(state, "truncation")
    assert row.drift_ratio is None
    assert row.drift_difference == pytest.approx(0.01 * (95.5 - 12))
    assert row.recent_median == pytest.approx(0.955)


# --------------------------------------------------------------------------- broken and dead values


def test_nonfinite_values_are_counted_over_five_steps_and_never_scored():
    bank, rng = trained(50)
    assert bank.observe(50, healthy(rng)).num_nonfinite_steps["grad"] == 0
    state = bank.observe(51, {**healthy(rng), "grad_norm": math.inf, "entropy": math.nan})
    assert state.num_nonfinite_steps == {"logprob": 1, "grad": 1, "reward": 0, "length": 0}
    assert signal(state, "entropy").z is None
    counts = [bank.observe(s, healthy(rng)).num_nonfinite_steps["grad"] for s in range(52, 58)]
    assert counts == [1, 1, 1, 1, 0, 0]


def test_steps_without_a_difference_in_score_are_counted():
    bank = SignalBank()
    assert bank.observe(0, {"reward": 1.0}).num_identical_score_steps is None
    for step in range(1, 8):
        bank.observe(step, {"score_max": 1.0, "score_min": 0.0})
    states = [bank.observe(s, {"score_max": 1.0, "score_min": 1.0}) for s in range(8, 11)]
    assert [state.num_identical_score_steps for state in states] == [1, 2, 3]
    assert not states[-1].had_score_signal
    assert bank.observe(11, {"score_max": 1.0, "score_min": 0.0}).had_score_signal


def test_a_solved_task_loses_no_signal():
    """All samples at the best score of the run: nothing to learn, and nothing broken."""
    bank = SignalBank()
    for step in range(20):
        bank.observe(step, {"score_max": 1.0, "score_min": 0.0})
    solved = [bank.observe(s, {"score_max": 1.0, "score_min": 1.0}) for s in range(20, 40)]
    assert solved[-1].num_identical_score_steps == 20
    assert not solved[-1].had_score_signal
    other = SignalBank()
    other.resume(through_json(bank.save()))
    for one in (bank, other):
        failed = [one.observe(s, {"score_max": 0.0, "score_min": 0.0}) for s in range(40, 50)]
        assert all(state.had_score_signal for state in failed)


def test_a_bank_continues_where_another_ended():
    """The agent was restarted: through JSON, in every phase of a collapse."""
    for num_before in (3, 50, 104, 140):
        bank, other = SignalBank(), SignalBank()
        rng = random.Random(4)
        rows = [healthy(rng) if i < 100 else collapsed(rng) for i in range(160)]
        for step in range(num_before):
            bank.observe(step, rows[step])
        other.resume(through_json(bank.save()))
        for step in range(num_before, 160):
            assert bank.observe(step, rows[step]) == other.observe(step, rows[step])
        assert bank.observe(160, rows[0]).is_latched


# ------------------------------------------------------------------------------------- properties

VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1.0, 1e308, -1e308, 9e99, -9e99, 5e-324]),
)
ROWS = st.lists(
    st.tuples(
        st.integers(-5, 40),
        st.dictionaries(st.sampled_from([*NAMES, "loss", "score_max", "score_min", "x"]), VALUES),
    ),
    max_size=60,
)


def test_numbers_at_the_end_of_the_range_are_not_scored():
    bank = SignalBank()
    for step in range(30):
        bank.observe(step, {"reward": 0.5})
    state = bank.observe(30, {"reward": 1.7e308})
    assert (signal(state, "reward").value, signal(state, "reward").z) == (None, None)


@given(ROWS)
@settings(max_examples=150)
def test_nothing_makes_it_raise_and_what_it_says_is_finite(rows):
    bank = SignalBank()
    for i, (step, values) in enumerate(rows):
        state = bank.observe(step, values)
        assert state.row <= i
        for row in state.signals:
            numbers = [x for x in dataclasses.astuple(row) if isinstance(x, float)]
            assert all(map(math.isfinite, numbers))
            assert 0 <= row.cusum_up <= 8
            assert 0 <= row.cusum_down <= 8
    other = SignalBank()
    other.resume(through_json(bank.save()))
    assert other.observe(99, {"entropy": 1.0}) == bank.observe(99, {"entropy": 1.0})


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=6))
def test_no_symptom_in_the_first_six_steps(rows):
    """Five steps fill the baseline; the first score alone cannot alarm."""
    bank = SignalBank()
    for step, values in enumerate(rows):
        state = bank.observe(step, values)
        assert active(state) == {}
        assert not state.is_latched


@given(
    st.floats(1e-6, 1e6),
    st.sampled_from(["grad_norm", "entropy", "reward", "policy_kl", "response_length"]),
    st.floats(allow_nan=False, allow_infinity=False),
)
@settings(max_examples=60, deadline=None)
def test_a_constant_series_with_one_outlier_never_alarms(level, name, outlier):
    bank = SignalBank()
    for step in range(40):
        state = bank.observe(step, {name: outlier if step == 30 else level})
        assert active(state) == {}


def test_memory_is_bounded():
    bank, rng = trained(300)
    size = len(repr(bank.save()))
    for step in range(300, 3000):
        bank.observe(step, {**healthy(rng), "loss": math.nan, "score_max": 1.0, "score_min": 0.0})
    assert len(repr(bank.save())) < size * 1.1


def test_a_reward_above_its_usual_value_has_not_fallen_however_far_below_its_trend():
    """It rose steadily and stops: "fell from 66 to 105" was said."""
    bank = SignalBank()
    for step in range(40):
        bank.observe(step, {"reward": step / 40})
    for step in range(40, 43):
        state = bank.observe(step, {"reward": 0.7})
        row = signal(state, "reward")
        assert row.z < -1, "of its trend"
        assert row.value > row.usual_value
        assert not any(s.is_active and s.direction == "down" for s in state.symptoms)
