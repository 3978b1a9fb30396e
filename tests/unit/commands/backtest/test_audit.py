"""The audit of a finished run: what is told, and what healthy runs are spared."""

import random

import pytest

from dfx_agent.commands.backtest.audit import Audit

NUM_ROWS = 120


def lines(framework: str, **series) -> list[str]:
    """``series``: key with "__" for "/" -> value of the share of the run that has passed."""
    keyed = {key.replace("__", "/").replace("AT", "@"): entry for key, entry in series.items()}
    audit, rng = Audit(), random.Random(1)
    audit.add_keys(framework, keyed)
    for i in range(NUM_ROWS):
        is_validated = i % 10 == 0
        values = {key: entry(i / NUM_ROWS) * rng.lognormvariate(0, 0.05)
                  for key, entry in keyed.items() if is_validated or "val" not in key}  # fmt: skip
        signals = {"reward": "reward", "length": "response_length"}
        audit.observe({to: values[key] for key, to in signals.items() if key in values}, values)
    return audit.lines


def rising(share: float) -> float:
    return 0.2 + 0.6 * share


def flat(_share: float) -> float:
    return 0.3


def falling(share: float) -> float:
    return 0.8 - 0.6 * share


def test_a_reward_that_rises_without_the_held_out_score_is_told():
    (line,) = lines("verl", reward=rising, **{"val-core__math__acc__meanAT1": flat})
    assert line.startswith("the reward rose (0.2")
    assert "held-out val-core/math/acc/mean@1 did not (0.3" in line


@pytest.mark.parametrize(
    "series",
    [
        {"reward": rising, "val-core__math__acc__meanAT1": rising},
        {"reward": flat, "val-core__math__acc__meanAT1": flat},
        {"reward": falling, "val-core__math__acc__meanAT1": falling},
        {"reward": rising, "val-core__math__time": flat},
        {"reward": rising, "length": flat},
    ],
)
def test_what_rises_with_the_reward_or_is_no_score_is_not(series):
    assert lines("verl", **series) == []


def test_a_part_of_the_reward_that_falls_is_told_and_one_that_stands_is_not():
    (line,) = lines("trl", reward=rising, rewards__correct__mean=falling, rewards__form__mean=flat)
    assert "rewards/correct/mean did not (0.7" in line


def test_longer_responses_are_told():
    (line,) = lines("verl", reward=flat, length=lambda share: 100 + 200 * share)
    assert "times as long as at the start (1" in line


def test_few_values_and_numbers_that_are_none_say_nothing():
    audit = Audit()
    audit.add_keys("verl", ["val-core/math/acc/mean@1"])
    for i in range(8):
        audit.observe({"reward": i, "response_length": 9.0**i}, {"val-core/math/acc/mean@1": 0.0})
    for _ in range(99):
        audit.observe({"reward": float("nan"), "response_length": float("inf")}, {})
    assert audit.lines == []
