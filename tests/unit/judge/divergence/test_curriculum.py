"""The next stage of a curriculum is a planned change, where the run reports its stage."""

from __future__ import annotations

import random

import pytest
from kept_json import through_json
from training_curves import collapsed, healthy

from dfx_agent.catalogue.native.meaning import is_curriculum_stage
from dfx_agent.catalogue.native.signal_sources import signal_of
from dfx_agent.judge.divergence.bank import SignalBank


def curriculum(step: int, rng: random.Random, *, stage: float | None) -> dict[str, float]:
    """Prompts become harder at step 60: two thirds of the reward, responses a third longer."""
    values = healthy(rng)
    if step >= 60:
        values["reward"] -= 0.2
        values["response_length"] *= 1.35
        values["entropy"] *= 1.2
    return values if stage is None else values | {"curriculum": stage + (step >= 60)}


@pytest.mark.parametrize(("stage", "is_paged"), [(None, True), (1.0, False)])
def test_the_next_stage_of_a_curriculum_is_no_collapse(stage, is_paged):
    bank, rng = SignalBank(), random.Random(0)
    states = [bank.observe(step, curriculum(step, rng, stage=stage)) for step in range(120)]
    assert any(state.is_latched for state in states) == is_paged


@pytest.mark.parametrize("stages", [lambda step: step // 8, lambda step: step / 60, lambda _: 3])
def test_a_number_that_is_no_stage_leaves_the_baselines(stages):
    bank, rng = SignalBank(), random.Random(0)
    for step in range(120):
        values = curriculum(step, rng, stage=None) | {"curriculum": float(stages(step))}
        state = bank.observe(step, values)
    assert state.is_latched


def test_a_collapse_within_a_stage_is_found_and_the_stage_outlives_the_agent():
    bank, rng = SignalBank(), random.Random(0)
    for step in range(70):
        state = bank.observe(step, curriculum(step, rng, stage=1.0))
    loaded = SignalBank()
    loaded.resume(through_json(bank.save()))
    for step in range(70, 130):
        state = loaded.observe(step, curriculum(step, rng, stage=1.0))
    assert not state.is_latched
    for step in range(130, 136):
        state = loaded.observe(step, collapsed(rng) | {"curriculum": 2.0})
    assert state.is_latched


@pytest.mark.parametrize(
    ("key", "is_stage"),
    [
        ("curriculum_stage", True),
        ("train/curriculum/level", True),
        ("difficulty_level", True),
        ("difficulty", True),
        ("curriculum_reward", False),
        ("difficulty_mean_reward", False),
        ("time/stage", False),
        ("stage", False),
    ],
)
def test_which_keys_are_the_stage_of_a_curriculum(key, is_stage):
    assert is_curriculum_stage(key) == is_stage
    assert (signal_of("", key) == "curriculum") == is_stage
