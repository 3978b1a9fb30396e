"""Since when: the common change point of everything that moved, and how sure it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_curves import healthy

from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.judge.divergence.onset import find_onset, update_before
from dfx_agent.judge.divergence.verdict import divergence_verdict

ROWS = st.lists(st.floats(-1e6, 1e6), max_size=60)


def noise(rng: random.Random, num: int, mean: float = 0.0) -> list[float]:
    return [rng.gauss(mean, 1.0) for _ in range(num)]


def history(zs: list[float], every: int = 1) -> list[tuple[int, float]]:
    """Steps from 0 on."""
    return [(every * row, z) for row, z in enumerate(zs)]


@pytest.mark.parametrize("seed", range(20))
def test_two_signals_that_move_together_tell_the_step_within_the_range(seed):
    rng = random.Random(seed)
    moved = [history(noise(rng, 40) + noise(rng, 6, mean)) for mean in (3.0, 5.0)]
    found = find_onset(moved)
    assert found.low_step <= found.step <= found.high_step
    assert abs(found.step - 40) <= 2
    assert found.low_step - 1 <= 40 <= found.high_step + 1


def test_a_small_drift_before_it_is_not_the_beginning():
    """KL of the demo: a little higher since step 37, far off since step 70."""
    drift = [0.0] * 37 + [1.1] * 33 + [9.0, 9.5]
    assert find_onset([history(drift)]).step == 70


def test_what_had_ended_before_calm_rows_is_another_one():
    zs = [0.0] * 20 + [6.0] * 6 + [0.5] * 9 + [1.0] * 6 + [7.0] * 4
    assert find_onset([history(zs)]).low_step >= 35
    still = [0.0] * 20 + [6.0] * 6 + [0.5] * 3 + [7.0] * 10
    assert find_onset([history(still)]).step == 20


def test_a_slow_drift_has_a_wide_range_and_a_jump_a_narrow_one():
    slow = find_onset([history([0.0] * 30 + [0.3 * row for row in range(12)])])
    sudden = find_onset([history([0.0] * 30 + [8.0] * 4)])
    assert sudden.low_step == sudden.high_step == 30
    assert slow.high_step - slow.low_step >= 2


def test_rows_that_a_signal_does_not_report_say_nothing():
    item = history([0.0] * 40 + [5.0] * 8)
    sparse = history([0.0] * 10 + [5.0] * 2, every=4)
    assert find_onset([item, sparse]).step == 40
    assert find_onset([sparse]).step == 40


def test_nothing_that_is_off_has_no_onset():
    assert find_onset([]) is None
    assert find_onset([[]]) is None
    assert find_onset([history([-1.0] * 30)]) is None


def test_not_before_a_given_step():
    zs = history([0.0] * 20 + [5.0] * 10)
    assert find_onset([zs], from_step=24).step == 24


@given(st.lists(ROWS, max_size=4))
def test_the_range_holds_the_step_whatever_the_rows(rows):
    found = find_onset([history(zs) for zs in rows])
    if found is not None:
        assert found.low_step <= found.step <= found.high_step


def _collapse_while_entropy_declines(onset: int = 60, num_steps: int = 160):
    """KL and gradient norm run away; the entropy falls by 0.6 % a step from the start on."""
    rng = random.Random(4)
    for step in range(num_steps):
        values = healthy(rng)
        values["entropy"] *= 0.994**step
        if step >= onset:
            values["policy_kl"] *= 12
            values["grad_norm"] *= 6
            values["reward"] -= 0.25
        yield step, values


@pytest.mark.parametrize("is_restarted", [False, True])
def test_cause_and_onset_of_a_page_stay_as_they_were_found(is_restarted):
    bank, result = SignalBank(), []
    for step, values in _collapse_while_entropy_declines():
        state = bank.observe(step, values)
        if is_restarted and step == 80:
            stored = bank.save()
            bank = SignalBank()
            bank.resume(stored)
        if state.is_latched:
            verdict = divergence_verdict(state, "trainer")
            result.append((verdict.step, verdict.cause, verdict.action))
    assert len(result) > 60
    assert len(set(result)) == 1
    assert result[0][0] in range(57, 64)
    assert not result[0][1].startswith("entropy")


def test_what_moves_after_the_page_began_is_not_dated_before_it():
    bank = SignalBank()
    for step, values in _collapse_while_entropy_declines():
        state = bank.observe(step, values)
        if state.is_latched:
            dates = {row.symptom: row.onset_step for row in state.symptoms if row.is_active}
            assert min(dates.values()) >= state.onset.low_step
    assert "entropy" in dates


@pytest.mark.parametrize(
    ("kl", "step"),
    [
        ([0.0] * 9 + [5.1, 2.0, 2.0], 9),  # the far update is one row before the onset
        ([0.0] * 8 + [5.9, 4.4, 5.6, 4.5], 8),  # and lasts until after it
        ([0.0] * 8 + [5.1, 2.0, 2.0], None),  # it ended two rows before: another event
        ([0.0] * 10 + [3.5, 5.0], None),  # a moderate one; a later one is no cause
        ([], None),
    ],
)
def test_an_update_that_was_far_until_the_onset_is_where_it_began(kl, step):
    assert update_before(10, [history(kl), history([0.0] * 12)]) == step


def learning(step: int, rng: random.Random) -> dict[str, float]:
    return healthy(rng) | {"reward": 0.1 + 0.002 * step + rng.gauss(0, 0.01)}


@pytest.mark.parametrize("seed", range(4))
def test_what_an_update_does_to_the_samples_is_seen_a_row_later(seed):
    """The demo with ``--fault divergence``: KL is far in one row, all else from the next on."""
    bank, rng = SignalBank(), random.Random(seed)
    for step in range(40):
        bank.observe(step, learning(step, rng))
    bank.observe(40, learning(40, rng) | {"policy_kl": 0.5})
    dead = {"reward": 0.0, "entropy": 0.04, "response_length": 4000.0, "truncation": 0.99}
    states = [bank.observe(step, learning(step, rng) | dead) for step in (41, 42)]
    assert states[-1].is_latched
    assert (states[-1].onset.step, states[-1].onset.first) == (40, "divergence")


@pytest.mark.parametrize(("bonus", "is_paged"), [(20.0, True), (0.0, False)])
def test_responses_that_grow_after_the_reward_jumped_page_since_the_jump(bonus, is_paged):
    """The demo with ``--fault length_explosion``; without the bonus the run learns to reason."""
    bank, rng = SignalBank(), random.Random(0)
    for step in range(70):
        values, longer = learning(step, rng), min(3.0, 1.15 ** max(0, step - 40))
        values["response_length"] *= longer
        values["reward"] += bonus * longer / 3 if step >= 40 else 0.0
        state = bank.observe(step, values)
        if state.is_latched:
            break
    assert state.is_latched == is_paged
    if is_paged:
        assert step <= 50
        assert (state.onset.step, state.onset.first) == (40, "reward")
        assert "reward rose" in divergence_verdict(state, "0").summary
