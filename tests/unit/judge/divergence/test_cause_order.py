"""What is named as the cause of a divergence: what left its range first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.judge.divergence.cause_order import cause, onset_of
from dfx_agent.snapshot import CollapseRow, SignalState, SymptomRow

NOTHING = SignalBank().observe(1, {"policy_kl": 1e-3, "mismatch_kl": 1e-3, "grad_norm": 1.0})


def symptom(name: str, onset: int | None, *, is_active: bool = True) -> SymptomRow:
    return SymptomRow(name, "up", is_active, onset)


def state(*symptoms: SymptomRow, collapses=(), **zs: float) -> SignalState:
    signals = tuple(replace(row, z=zs.get(row.signal)) for row in NOTHING.signals)
    return replace(NOTHING, symptoms=symptoms, collapses=tuple(collapses), signals=signals)


def first(said: str) -> str:
    return said.partition(" first")[0]


def cause_of(shown: SignalState) -> str:
    return cause(onset_of(shown))


@pytest.mark.parametrize(
    ("symptoms", "named"),
    [
        ((), ""),
        ((symptom("entropy", 12), symptom("grad_norm", 11)), "gradient norm"),
        ((symptom("grad_norm", 11), symptom("entropy", 10)), "entropy"),
        ((symptom("entropy", 12), symptom("grad_norm", 11, is_active=False)), "entropy"),
        ((symptom("entropy", None), symptom("reward", 30)), "reward"),
        ((symptom("no such family", 1), symptom("length", 30)), "response length"),
    ],
)
def test_the_earliest_family_that_is_active(symptoms, named):
    assert first(cause_of(state(*symptoms))) == named


@pytest.mark.parametrize(
    ("distances", "named"),
    [
        ({"policy_kl": 2.3, "grad_norm": -14.9}, "gradient norm"),
        ({"policy_kl": 7.2, "grad_norm": -12.7}, "KL"),
        ({"policy_kl": 2.3, "grad_norm": 2.2}, "KL"),
    ],
)
def test_of_several_in_one_step_a_far_kl_else_the_farthest(distances, named):
    both = symptom("divergence", 54), symptom("grad_norm", 54)
    assert first(cause_of(state(*both, symptom("reward", 55), **distances))) == named


def test_distances_say_nothing_where_the_reward_fell_in_the_same_step():
    all_at_once = (symptom(name, 61) for name in ("reward", "divergence", "grad_norm"))
    assert first(cause_of(state(*all_at_once, policy_kl=2.3, grad_norm=-14.9))) == "KL"


@pytest.mark.parametrize(
    ("zs", "named"),
    [
        ({"mismatch_kl": 5.0}, "mismatch KL"),
        ({"mismatch_kl": 5.0, "policy_kl": 2.0}, "mismatch KL"),
        ({"mismatch_kl": 5.0, "policy_kl": 2.1}, "KL"),
        ({"policy_kl": 5.0}, "KL"),
        ({}, "KL"),
        ({"grad_norm": 9.0, "mismatch_kl": 5.0}, "mismatch KL"),
    ],
)
def test_which_kl_it_was(zs, named):
    assert first(cause_of(state(symptom("divergence", 5), **zs))) == named


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (CollapseRow("blow_up", "loss", 5, 9), "loss"),
        (CollapseRow("truncation", "", 3, 9), "response length"),
        (CollapseRow("dead", "", 8, 9), "response length"),
        (CollapseRow("blow_up", "loss", 5, 11), "entropy"),
        (CollapseRow("blow_up", "loss", 0, 9), "entropy"),
        (CollapseRow("blow_up", "loss", 5, None), "entropy"),
    ],
)
def test_a_collapse_that_came_first(row, named):
    assert first(cause_of(state(symptom("entropy", 10), collapses=[row]))) == named


def test_of_what_began_in_the_same_step_the_reward_is_not_the_cause():
    assert first(cause_of(state(symptom("reward", 5), symptom("length", 5)))) == "response length"
    assert first(cause_of(state(symptom("reward", 4), symptom("length", 5)))) == "reward"


def test_a_collapse_that_has_not_lasted_names_no_cause():
    short = state(symptom("length", 10), collapses=[CollapseRow("blow_up", "loss", 1, 3)])
    assert first(cause_of(short)) == "response length"
