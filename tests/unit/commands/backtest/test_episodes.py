"""Which alerts a log can make fire, and when they would have come."""

from __future__ import annotations

import math
import random

import pytest
from training_curves import healthy, trained

from dfx_agent.commands.backtest.episodes import STEP_CLOCKED, episodes
from dfx_agent.commands.backtest.replay import replay
from dfx_agent.judge.divergence.bank import SignalBank


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_a_loss_that_is_not_a_number_is_a_page_to_the_end(where):
    bank, rng = trained(60)
    broken = [bank.observe(step, {**healthy(rng), where: math.nan}) for step in range(60, 90)]
    found = {(e.alert, e.severity): (e.row, e.last_row) for e in episodes(broken)}
    assert found["DfxNonFinite", "critical"] == (60, 89)


def test_an_alert_that_also_reads_what_no_log_has_is_among_them():
    named = {(alert.name, alert.severity) for alert in STEP_CLOCKED}
    assert {("DfxNonFinite", "critical"), ("DfxTrainingDivergence", "critical")} <= named
    assert not named & {("DfxStepStalled", "critical"), ("DfxHostMemoryLeak", "warning")}


def test_a_replay_that_makes_only_the_rows_that_alerts_read_finds_the_same():
    rng, rows = random.Random(5), []
    for step in range(400):
        values = healthy(rng) | {"truncation": 0.02}
        if step > 250:
            values["response_length"] *= 3
            values["truncation"] = 0.9
        if step > 300:
            values["entropy"] *= 9
        rows.append((step, values))
    bank = SignalBank()
    expected = episodes(bank.observe(step, values) for step, values in rows)
    assert {"DfxLengthDrift", "DfxRolloutDegraded"} <= {episode.alert for episode in expected}
    assert replay(rows) == expected


NORM = "The gradient norm was NaN or infinite"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"loss": math.nan}, ["The loss was NaN or infinite at step 600."]),
        (
            {"policy_kl": math.nan, "entropy": math.nan},
            ["The KL and the entropy were NaN or infinite at step 600."],
        ),
        (
            {"grad_norm": math.inf},
            [f"{NORM} at step 600.", f"{NORM}, in 2 of the last 5 steps, first at step 600."],
        ),
    ],
)
def test_a_page_of_nan_names_signals_and_step(broken, said):
    rng = random.Random(1)
    rows = [(10 * i, healthy(rng) | (broken if i >= 60 else {})) for i in range(70)]
    assert [e.sentence for e in replay(rows) if e.alert == "DfxNonFinite"] == said


def test_the_step_of_a_second_nan_is_its_own():
    rng = random.Random(1)
    rows = [(i, healthy(rng) | ({"loss": math.nan} if i in {60, 100} else {})) for i in range(120)]
    pages = [e.sentence for e in replay(rows) if e.severity == "critical"]
    assert pages == [f"The loss was NaN or infinite at step {step}." for step in (60, 100)]
