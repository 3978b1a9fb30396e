"""Fast learners are healthy; cliffs, falls, jumps, blow-ups and dead runs are found."""

from __future__ import annotations

import math
import random
import re

import pytest
from kept_json import through_json
from training_curves import active, collapsed, healthy, signal, trained

from dfx_agent.commands.backtest.episodes import episodes
from dfx_agent.commands.backtest.replay import replay
from dfx_agent.judge.divergence.anchor import Anchor
from dfx_agent.judge.divergence.bank import HOLD_STEPS, LATCH_SECONDS, LATCH_STEPS, SignalBank
from dfx_agent.judge.divergence.verdict import divergence_verdict
from dfx_agent.snapshot import SignalState


def learner(step: int, rng: random.Random) -> dict[str, float]:
    """Rewards rise from 0.05 to 0.95 within 60 steps, entropy falls, KL to the reference rises."""
    gained = 1 / (1 + math.exp(-(step - 38) / 7))
    return {
        "policy_kl": rng.gauss(5e-3, 2e-3),
        "ref_kl": (0.02 + 0.45 * min(1.0, step / 8) + 1.5 * gained) * rng.lognormvariate(0, 0.06),
        "grad_norm": 2.0 * rng.lognormvariate(0, 0.25),
        "entropy": (2.5 - 0.4 * min(1.0, step / 8) - 1.6 * gained) * rng.lognormvariate(0, 0.02),
        "reward": 0.05 + 0.9 * gained + rng.gauss(0, 0.015),
        "response_length": (7 + 5 * math.exp(-step / 4)) * rng.lognormvariate(0, 0.06),
        "truncation": max(0.0, rng.gauss(0.0, 0.005)),
    }


def broken(step: int, rng: random.Random) -> dict[str, float]:
    """As the demo with ``--fault divergence``."""
    values = learner(step, rng)
    return {**values, "reward": 0.02, "response_length": 23.9, "truncation": 0.98, "ref_kl": 4.0}


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_fast_learner_is_not_unstable(seed):
    bank, rng = SignalBank(), random.Random(seed)
    rows = [(step, learner(step, rng)) for step in range(1, 160)]
    states = [bank.observe(step, values) for step, values in rows]
    assert not [e for e in episodes(states) if e.severity != "info"]


@pytest.mark.parametrize("fault", [30, 50, 70, 90, 120])
def test_a_cliff_does_not_fit_into_the_band_of_a_fast_rise(fault):
    bank, rng = SignalBank(), random.Random(fault)
    for step in range(1, fault):
        assert not bank.observe(step, learner(step, rng)).is_latched
    states = [bank.observe(step, broken(step, rng)) for step in range(fault, fault + 5)]
    assert states[-1].is_latched
    assert states[-1].is_reward_improving is False


def test_one_collapse_is_one_page_though_rollouts_are_cut_and_nothing_is_learned():
    """Truncation pages for itself, and so do equal scores: the collapse speaks for both."""
    bank, rng = SignalBank(), random.Random(3)
    scores = {"score_max": 1.0, "score_min": 0.0}
    states = [bank.observe(step, learner(step, rng) | scores) for step in range(1, 70)]
    dead = {"score_max": 0.02, "score_min": 0.02}
    states += [bank.observe(step, broken(step, rng) | dead) for step in range(70, 120)]
    assert states[-1].num_identical_score_steps == 50
    pages = [item for item in episodes(states) if item.severity == "critical"]
    assert [(item.alert, item.last_step) for item in pages] == [("DfxTrainingDivergence", 119)]


def test_the_cold_floor_of_a_raw_signal_does_not_multiply_a_tenth_of_the_median():
    bank = SignalBank()
    for step in range(5):
        bank.observe(step, {"reward": 0.9})
    assert signal(bank.observe(5, {"reward": 0.0}), "reward").z == pytest.approx(-0.9 / 0.15)


def test_two_unlucky_rows_of_a_coarse_metric_are_no_symptom():
    """Rewards in steps of 1/8, truncation in steps of 1/2."""
    bank = SignalBank()
    for step in range(60):
        state = bank.observe(step, {"reward": 0.875 if step % 9 else 0.75, "truncation": 0.0})
    for step in (60, 61):
        state = bank.observe(step, {"reward": 0.625, "truncation": 0.5})
    assert active(state) == {}


def test_a_drawdown_is_a_symptom_of_the_reward_and_names_where_it_began():
    bank = SignalBank()
    for step in range(60):
        bank.observe(step, {"reward": 0.015 * step + 0.002 * (step % 3)})
    states = [bank.observe(step, {"reward": 0.3}) for step in range(60, 65)]
    assert active(states[-1]) == {"reward": "down"}
    assert 59 <= next(r.onset_step for r in states[-1].symptoms if r.symptom == "reward") <= 61


def test_a_stepwise_fall_is_not_improving():
    """Reward 20 to 8.6 while KL grows: the rows before the fall speak for nothing."""
    bank, rng = SignalBank(), random.Random(0)
    for step in range(60):
        state = bank.observe(step, {"reward": 10 + step / 6 + rng.gauss(0, 0.3), "policy_kl": 1e-3})
    assert state.is_reward_improving
    for i, reward in enumerate((17.0, 17.0, 14.0, 14.0, 11.0, 11.0, 8.6, 8.6)):
        state = bank.observe(60 + i, {"reward": reward, "policy_kl": 1e-3 * 5 ** (i + 1)})
    assert not state.is_reward_improving
    assert state.is_latched


def test_one_good_row_does_not_end_a_page():
    bank, rng = trained(100)
    moved = ("policy_kl", "grad_norm", "entropy")
    for step in range(100, 110):
        values = healthy(rng)
        state = bank.observe(step, {**values, **{name: values[name] * 8 for name in moved}})
    assert state.is_latched
    values = healthy(rng)
    better = {**values, **{name: values[name] * 8 for name in moved}, "reward": 1.0}
    assert bank.observe(110, better).is_latched
    assert bank.observe(111, better).is_latched


def test_baselines_do_not_learn_while_a_warning_fires():
    bank, rng = trained(100)
    for step in range(100, 104):
        bank.observe(step, {**healthy(rng), "entropy": 5.0, "response_length": 9000.0})
    highs = set()
    for step in range(104, 120):
        row = bank.observe(step, {**healthy(rng), "entropy": 5.0, "response_length": 9000.0})
        highs.add(signal(row, "entropy").baseline_high)
    assert len(highs) == 1


def test_they_learn_what_has_fired_for_32_steps():
    bank, rng = trained(100)
    is_frozen = []
    for step in range(100, 160):
        bank.observe(step, {**healthy(rng), "entropy": 5.0, "response_length": 9000.0})
        is_frozen.append(bank.save().signals["entropy"].baseline.is_frozen)
    begin = is_frozen.index(True)
    assert is_frozen[begin : begin + HOLD_STEPS + 1] == [True] * HOLD_STEPS + [False]


def collapse_steps(state: SignalState) -> dict[str, int]:
    return {row.kind: row.num_steps for row in state.collapses if row.num_steps}


def test_a_run_that_is_dead_from_its_start_is_found_after_eight_steps():
    bank = SignalBank()
    states = [bank.observe(s, {"reward": 0.0, "truncation": 0.97}) for s in range(8)]
    assert [state.is_latched for state in states] == [False] * 7 + [True]
    assert collapse_steps(states[-1]) == {"dead": 8}


def test_who_is_dead_for_longer_than_the_latch_is_dead_since_the_same_step():
    bank, rng = trained(60)
    dead = {**healthy(rng), "reward": -1.0, "truncation": 1.0}
    states = [bank.observe(step, dead) for step in range(60, 60 + 3 * LATCH_STEPS)]
    after = states[12:]
    assert {row.onset_step for s in after for row in s.collapses if row.kind == "dead"} == {60}
    begun = [state.row for state in states if state.is_latched]
    assert len(begun) > 3 * LATCH_STEPS - 20, "the page does not end"
    bank.reset()
    assert not bank.observe(500, dead).is_latched


def test_a_jump_of_truncation_is_found_whatever_the_reward_does():
    bank, rng = trained(60)
    for step in range(60, 63):
        state = bank.observe(step, {**healthy(rng), "truncation": 0.8, "reward": 2.0})
    assert collapse_steps(state) == {"truncation": 3}
    assert state.is_latched


def test_one_signal_that_blows_up_is_found_and_one_spike_is_not():
    bank, rng = trained(60)
    assert not bank.observe(60, {**healthy(rng), "grad_norm": 1e9}).is_latched
    bank.observe(61, healthy(rng))
    for step in range(62, 67):
        state = bank.observe(step, {**healthy(rng), "loss": 0.1, "grad_norm": 100.0})
    assert collapse_steps(state)["blow_up"] == 5
    assert state.is_latched
    blown = bank.observe(67, {**healthy(rng), "loss": 0.1, "grad_norm": 1e120})
    assert collapse_steps(blown)["blow_up"] == 6


def test_entropy_that_falls_by_its_size_alone_is_found_and_a_learner_s_is_not():
    """The demo's entropy collapse: nothing else leaves its range, the reward only stands still."""
    bank, rng = trained(60)
    for step in range(60, 66):
        state = bank.observe(step, {**healthy(rng), "entropy": 0.4 / 10})
        assert state.is_latched is (step >= 61), "two of three rows are low"
    verdict = divergence_verdict(state, "trainer")
    assert re.search(r"since step 60: entropy fell from 0\.\d+ to 0\.04, ", verdict.summary)
    assert verdict.summary.count("since step") == 1
    assert verdict.cause.startswith("entropy first: ")
    bank, rng = trained(60)
    for step in range(60, 110):
        risen, entropy = 0.6 + 0.05 * (step - 60), 0.4 * 0.95 ** (step - 60)
        state = bank.observe(step, {**healthy(rng), "entropy": entropy, "reward": risen})
        assert not state.is_latched, "while the reward rises it is learning"


@pytest.mark.parametrize("step_seconds", [0.002, 0.5, 40.0])
def test_a_page_lasts_long_enough_to_be_sent_with_short_steps(step_seconds):
    """A plain job of 2 ms a step: its loss blew up, 0.3 s later the new state was normal."""
    bank, rng = trained(60)
    latched = []
    for step in range(60, 60 + int(2 * LATCH_SECONDS / step_seconds) + 2 * LATCH_STEPS):
        # it comes back, as the loss of a dead network does
        blown = {"grad_norm": 100.0} if step < 70 else {}
        state = bank.observe(step, {**healthy(rng), **blown}, step * step_seconds)
        latched += [step] if state.is_latched else []
        if latched and not state.is_latched:
            break
    assert 60 < latched[0] < 70
    assert latched == list(range(latched[0], latched[-1] + 1))
    num_seconds = step_seconds * len(latched)
    assert num_seconds >= LATCH_SECONDS - step_seconds or len(latched) >= LATCH_STEPS
    assert num_seconds < LATCH_SECONDS + 32 * step_seconds, "and not for ever"


def test_a_young_page_outlives_the_agent_and_a_clock_that_goes_back_holds_nothing():
    bank, rng = trained(60)
    for step in range(60, 66):
        bank.observe(step, {**healthy(rng), "grad_norm": 1e9}, 1000.0 + step)
    assert bank.latest_state.is_latched
    other = SignalBank()
    other.resume(through_json(bank.save()))
    for item, seconds in ((bank, 1070.0), (other, 1070.0)):
        for step in range(66, 106):
            state = item.observe(step, healthy(rng), seconds)
        assert state.is_latched
    for step in range(106, 146):
        state = other.observe(step, healthy(rng), 500.0)
    assert not state.is_latched


@pytest.mark.parametrize(
    ("name", "alert", "most"),
    [("response_length", "LengthDrift", 2.2), ("entropy", "EntropyDrift", 5.5)],
)
@pytest.mark.parametrize("growth", [0.005, 0.01, 0.02])
def test_a_drift_is_one_warning_in_time_and_no_page(name, alert, most, growth):
    """Half a percent to two percent a step: told by the time it is what the rule says, and once."""
    bank, rng = trained(60)
    states = []
    for step in range(60, 60 + int(math.log(1.3 * most) / growth)):
        values = healthy(rng)
        values[name] *= math.exp(growth * (step - 60))
        states.append(bank.observe(step, values))
    (reported,) = [item for item in episodes(states) if item.severity != "info"]
    assert (reported.alert, reported.severity) == (f"Dfx{alert}", "warning")
    assert math.exp(growth * (reported.step - 60)) < most


def test_a_length_that_hovers_about_its_limit_is_one_warning():
    """Cycles of 60 steps between 1.8 and 2.3 times the start: the same drift all the time."""
    bank, rng = trained(60)
    states = []
    for step in range(60, 560):
        values = healthy(rng)
        cycle = math.sin(2 * math.pi * step / 60)
        values["response_length"] *= min(2.05, 1 + (step - 60) / 150) + 0.25 * cycle
        states.append(bank.observe(step, values))
    reported = [item.alert for item in episodes(states) if item.severity == "warning"]
    assert reported.count("DfxLengthDrift") == 1, reported


def first_success(step: int, rng: random.Random) -> dict[str, float]:
    """A sparse reward: nobody succeeds until step 150, then it is learned."""
    has_begun = step >= 150
    gained = 1 - math.exp(-(step - 150) / 60) if has_begun else 0.0
    return {
        "grad_norm": (0.3 if has_begun else 2e-4) * rng.lognormvariate(0, 0.2),
        "reward": gained + rng.gauss(0, 0.01) * has_begun,
        "loss": rng.gauss(-0.3, 0.1) if has_begun else 0.02 * math.exp(-step / 50),
    }


@pytest.mark.parametrize("told", [{"grad_norm", "reward"}, {"grad_norm", "loss"}, {"grad_norm"}])
@pytest.mark.parametrize("seed", range(5))
def test_the_first_success_of_a_sparse_reward_is_no_blow_up(told, seed):
    """The norm rises from 2e-4 to 0.3 and stays; alone it would page, nobody says otherwise."""
    bank, rng = SignalBank(), random.Random(seed)
    pages = []
    for step in range(1, 600):
        values = first_success(step, rng)
        state = bank.observe(step, {name: values[name] for name in told})
        pages += [step] if state.is_latched else []
    assert bool(pages) is (told == {"grad_norm"}), pages


def test_new_data_that_is_learned_is_no_blow_up():
    """One batch was learned by heart; the loss of other data is higher, and falls."""
    bank = SignalBank()
    for step in range(1, 600):
        loss = math.exp(-step / 20) if step < 250 else math.exp(-(step - 250) / 20)
        state = bank.observe(step, {"loss": loss, "grad_norm": math.sqrt(loss)})
        assert not state.is_latched, step


@pytest.mark.parametrize("growth", [0.0, 0.05])
def test_a_norm_that_blows_up_with_a_higher_loss_is_one(growth):
    bank, rng = SignalBank(), random.Random(0)
    for step in range(1, 100):
        bank.observe(step, {"loss": rng.gauss(1.0, 0.02), "grad_norm": rng.lognormvariate(0, 0.1)})
    for step in range(100, 106):
        blown = {"loss": 1.5 + growth * (step - 100), "grad_norm": 100.0}
        state = bank.observe(step, blown)
        assert state.is_latched is (step >= 104)
    other = SignalBank()
    other.resume(through_json(bank.save()))
    assert other.latest_state == bank.latest_state


def test_a_page_that_outlives_its_reason_says_until_when():
    bank, rng = trained(60)
    for step in range(60, 66):
        state = bank.observe(step, {**healthy(rng), "grad_norm": 100.0}, float(step))
    result = divergence_verdict(state, "trainer").summary
    assert result.startswith("Training has been diverging since step 60: ")
    assert "gradient norm is far above its baseline and stays there" in result
    gone = {name: value for name, value in healthy(rng).items() if name != "grad_norm"}
    unreported = bank.observe(66, gone, 66.0)
    assert "and stays there" in divergence_verdict(unreported, "trainer").summary
    for step in range(67, 90):
        state = bank.observe(step, healthy(rng), float(step))
    assert state.is_latched, "it is young"
    result = divergence_verdict(state, "trainer").summary
    assert result.startswith("Training was diverging since step 60: ")
    assert result.endswith("gradient norm was far off its baseline until step 65.")


@pytest.mark.parametrize("growth", [0.01, 0.03, 0.06])
def test_a_loss_that_grows_steadily_is_found_though_its_window_follows(growth):
    """From 0.2 on for ever: each window finds the next step where its trend led."""
    bank, rng = SignalBank(), random.Random(1)
    latched = None
    for step in range(1, 1500):
        loss = 0.2 * math.exp(growth * max(0, step - 60)) * rng.lognormvariate(0, 0.05)
        state = bank.observe(step, {"loss": min(loss, 1e9)})
        latched = latched or (step if state.is_latched else None)
    assert latched is not None
    assert latched - 60 < 1.4 * math.log(100) / growth + 40


@pytest.mark.parametrize("loss_of", [
    lambda step: 7.0 * math.exp(-step / 40),  # learned
    lambda step: 5.0 + math.sin(step / 30),
    lambda step: (-1) ** step * math.exp(step / 100),  # of a policy gradient: its sign says nothing
    lambda step: 500.0 * math.exp(-(step % 200) / 20),  # new data each 200 steps, 500 once learned
])  # fmt: skip
def test_an_anchor_is_not_left_by_what_falls_again_or_has_a_sign(loss_of):
    anchor = Anchor(0.1)
    for step in range(1, 1000):
        anchor.observe(loss_of(step))
        assert not anchor.is_left, step


# -------------------------------------------------------- spikes, nothing learned, another attempt


@pytest.mark.parametrize("signal", ["loss", "policy_kl", "grad_norm"])
def test_spikes_of_one_row_are_counted_over_64_reports(signal):
    """A public run: 17 losses up to 5e7, each alone among usual ones."""
    bank, rng = trained(60)
    bank.observe(60, {**healthy(rng), "loss": 0.1})
    for step in range(61, 130):
        spike = {signal: 1e7} if step in {70, 90, 110} else {}
        state = bank.observe(step, {**healthy(rng), "loss": 0.2 if step > 61 else 0.1, **spike})
        assert state.is_latched is (step >= 110), step
    verdict = divergence_verdict(state, "trainer")
    assert verdict.step == 70
    assert "1000 times above its baseline in 3 of the last 64 steps" in verdict.summary
    other = SignalBank()
    other.resume(through_json(bank.save()))
    assert other.latest_state == bank.latest_state


def test_spikes_that_are_rare_or_small_are_none():
    bank, rng = trained(60)
    for step in range(60, 300):
        far = {"loss": 1e7} if step % 33 == 0 else {"grad_norm": 30.0} if step % 9 == 0 else {}
        state = bank.observe(step, {**healthy(rng), "loss": 0.2, **far})
        assert not state.is_latched, step


def test_a_reward_that_fell_and_stays_down_is_found_without_another_signal():
    bank, rng = SignalBank(), random.Random(3)
    for step in range(60):
        bank.observe(step, {"reward": rng.gauss(0.2 + 0.008 * step, 0.03)})
    for step in range(60, 100):
        state = bank.observe(step, {"reward": rng.gauss(0.15, 0.03)})
        assert not state.is_latched or step >= 80, step
    assert state.is_latched
    verdict = divergence_verdict(state, "trainer")
    assert abs(verdict.step - 60) <= 5
    assert verdict.cause.startswith("reward first")
    assert "reward f" in verdict.summary


def test_a_reward_that_comes_back_within_twenty_rows_is_no_page():
    bank, rng = SignalBank(), random.Random(3)
    for step in range(200):
        is_down = 60 <= step % 100 < 74
        level = 0.15 if is_down else 0.2 + 0.008 * min(step, 60)
        state = bank.observe(step, {"reward": rng.gauss(level, 0.03)})
        assert not state.is_latched, step


@pytest.mark.parametrize(
    "still",
    [
        {"grad_norm": 0.0},
        {"loss": 0.0, "ref_kl": 0.0},
        {"grad_norm": 1e-12, "loss": 0.0, "ref_kl": 0.0},
    ],
)
def test_a_run_that_never_learns_is_found_after_32_rows(still):
    bank = SignalBank()
    for step in range(1, 40):
        state = bank.observe(step, {"reward": 0.0, "response_length": 256.0, **still})
        assert state.is_latched is (step >= 32)
    verdict = divergence_verdict(state, "trainer")
    assert verdict.summary == (
        "Nothing has been learned since step 1: gradients are zero and the reward stays at 0."
    )
    assert verdict.action.startswith("Score one sample by hand")


@pytest.mark.parametrize(
    "values",
    [
        {"grad_norm": 0.1},
        {"loss": 0.0},  # of a method whose loss is 0 on average
        {"loss": 0.0, "ref_kl": 1e-4},
    ],
)
def test_a_run_with_any_gradient_is_none(values):
    bank = SignalBank()
    for step in range(80):
        assert not bank.observe(step, {"reward": 0.0, **values}).is_latched


def test_a_task_that_is_solved_has_nothing_to_learn_and_is_no_finding():
    bank = SignalBank()
    for step in range(120):
        solved = step > 30
        values = {"reward": 1.0 if solved else step / 30, "grad_norm": 0.0 if solved else 0.5}
        assert not bank.observe(step, values).is_latched


def test_a_counter_that_begins_again_is_another_attempt():
    """Two runs in one file: the second is not measured with what the first had become."""
    bank, rng = trained(60)
    for step in range(60, 70):
        bank.observe(step, collapsed(rng))
    assert bank.latest_state.is_latched
    for step in range(50):
        state = bank.observe(step, {**healthy(rng), "entropy": 4.0, "response_length": 90.0})
        assert not state.is_latched
        assert not any(row.is_active for row in state.symptoms)
    assert next(row for row in state.signals if row.signal == "entropy").is_baseline_ready
    for step in range(50, 56):
        state = bank.observe(step, {**collapsed(rng), "entropy": 0.1})
    assert state.is_latched, "and it is judged by its own rows"


def test_a_page_ends_where_the_job_goes_back_before_it():
    bank, rng = trained(60)
    for step in range(60, 70):
        bank.observe(step, collapsed(rng))
    assert bank.latest_state.is_latched
    for step in range(40, 60):
        state = bank.observe(step, healthy(rng))
        assert not state.is_latched


@pytest.mark.parametrize(("lost", "is_paged"), [(0.0, False), (0.2, True)])
@pytest.mark.parametrize("num_rows", [5, 60])
def test_a_reference_kl_alone_warns_and_pages_only_where_the_reward_is_lower(
    lost, is_paged, num_rows
):
    """2,000 times its baseline: one token can make an estimate of that size."""
    rng = random.Random(3)
    rows = []
    for step in range(160):
        values = {**healthy(rng), "ref_kl": 0.05 * rng.lognormvariate(0, 0.2)}
        if 80 <= step < 80 + num_rows:
            values["ref_kl"] *= 2000
            values["reward"] -= lost
        rows.append((step, values))
    found = {(episode.alert, episode.severity) for episode in replay(rows)}
    assert (("DfxTrainingDivergence", "critical") in found) is is_paged
    assert is_paged or ("DfxReferenceKlDrift", "warning") in found
