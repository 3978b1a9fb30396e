"""The verdict on training health: found with the vote, and honest about what it cannot know."""

from __future__ import annotations

import math
import random
import re

import pytest
from kept_json import through_json
from training_curves import collapsed, healthy, trained

from dfx_agent.catalogue.alerts.declared import alerts_with
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.judge.divergence.verdict import divergence_verdict


def test_a_collapse_is_found_with_its_onset_and_figures():
    bank, rng = trained(40)
    states = [bank.observe(40 + row, collapsed(rng)) for row in range(6)]
    verdict = divergence_verdict(states[-1], "trainer")
    assert (verdict.kind, verdict.state, verdict.step) == ("divergence", "found", 40)
    assert verdict.summary.startswith("Training has been diverging since step 40")
    assert re.search(r"reward fell from 0\.\d+ to 0\.\d+ \(since step 40\)", verdict.summary)
    assert any(
        line.startswith("entropy: ") and "usual range is 0." in line for line in verdict.evidence
    )
    assert verdict.evidence[-1].startswith("the usual ranges are those before step")


def test_it_says_what_moved_first_and_the_newest_checkpoint_before_that():
    bank, rng = trained(40)
    for step in range(40, 43):
        state = bank.observe(step, {**healthy(rng), "response_length": 9000.0})
    for step in range(43, 49):
        state = bank.observe(step, {**collapsed(rng), "response_length": 9000.0})
    verdict = divergence_verdict(state, "trainer", checkpoints={20, 30, 40, 45})
    assert verdict.cause == ("response length first: truncation, or the format is being gamed")
    assert verdict.step == 40
    assert verdict.summary.startswith("Training has been diverging since step 40: ")
    assert verdict.action == (
        "Roll back to the checkpoint of step 30, the latest before the divergence, then read "
        "samples of that step, and check the response limit and the length reward."
    )


def test_one_family_that_blows_up_is_found():
    """A plain torch job: nothing but a loss."""
    bank = SignalBank()
    for step in range(40):
        state = bank.observe(step, {"loss": 6.9 - 0.01 * step})
    assert divergence_verdict(state, "trainer").state == "insufficient evidence"
    for step in range(40, 46):
        state = bank.observe(step, {"loss": 1.5e10})
    verdict = divergence_verdict(state, "trainer")
    assert (verdict.state, verdict.step) == ("found", 40)
    assert "loss is far above its baseline" in verdict.summary
    assert verdict.cause.startswith("loss first")


def test_a_healthy_run_is_clear():
    bank, rng = trained(40)
    verdict = divergence_verdict(bank.observe(40, healthy(rng)), "trainer")
    assert (verdict.state, verdict.summary) == ("clear", "No signal has left its baseline.")


def test_a_cold_start_is_no_evidence():
    bank, rng = trained(6)
    verdict = divergence_verdict(bank.observe(6, healthy(rng)), "trainer")
    assert verdict.state == "insufficient evidence"
    assert "after 7 steps these signals have no baseline yet" in verdict.summary


def test_one_family_alone_can_never_vote_and_says_so():
    bank, rng = SignalBank(), random.Random(0)
    for step in range(40):
        state = bank.observe(step, {"grad_norm": rng.lognormvariate(0, 0.1)})
    verdict = divergence_verdict(state, "trainer")
    assert verdict.state == "insufficient evidence"
    assert verdict.summary == (
        "Only gradient norm is reported, so only NaN, Inf and explosions can be detected."
    )
    assert "divergence is found when 3 kinds of signals move together" in verdict.evidence


def test_a_moved_threshold_moves_the_verdict_and_what_it_needs():
    (moved,) = alerts_with({"divergence_families_with_reward": 4}, (DIVERGENCE,))
    bank, rng = trained(40)
    states = [bank.observe(40 + row, collapsed(rng)) for row in range(6)]
    assert divergence_verdict(states[-1], "trainer").state == "found"
    (higher,) = alerts_with({"divergence_families": 4}, (moved,))
    assert divergence_verdict(states[-1], "trainer", higher.condition).state == "clear"
    bank = SignalBank()
    for step in range(40):
        values = healthy(rng)
        state = bank.observe(step, {name: values[name] for name in ("entropy", "grad_norm")})
    evidence = divergence_verdict(state, "t", higher.condition).evidence
    assert "divergence is found when 4 kinds of signals move together" in evidence


def figure(bank: SignalBank, **values: float) -> str:
    """What is said of the only signal after one more step."""
    ((name, value),) = values.items()
    verdict = divergence_verdict(bank.observe(bank.latest_state.step + 1, {name: value}), "trainer")
    (line,) = [line for line in verdict.evidence if line.startswith(f"{name}: ")]
    return line


def steady(name: str, value: float) -> SignalBank:
    bank, rng = SignalBank(), random.Random(1)
    for step in range(40):
        bank.observe(step, {name: value * rng.uniform(0.98, 1.02)})
    return bank


@pytest.mark.parametrize(
    ("usual", "value", "says", "band"),
    [
        (0.08, 0.03, "loss: 0.03", "its usual range is at most 0.18"),
        (1.0, -1.0, "loss: -1", "its usual size is 0.5"),
        (1.0, 1.0, "loss: 1", "its usual range is 0.5"),
        (1.0, 9.0, "loss: 9, higher than usual", "its usual range is 0.5"),
    ],
)
def test_a_value_is_said_against_its_usual_range(usual, value, says, band):
    line = figure(steady("loss", usual), loss=value)
    assert line.startswith(f"{says}; {band}")


def test_evidence_is_in_the_units_of_the_signals_and_names_no_internals():
    bank, rng = trained(40)
    states = [bank.observe(40 + row, collapsed(rng)) for row in range(6)]
    verdict = divergence_verdict(states[-1], "trainer")
    lines = [line for line in verdict.evidence if " rose to " in line or " fell to " in line]
    assert len(lines) >= 2
    pattern = r"\w+: (rose|fell) to [-\d.e+]+ within \d steps?; its usual range is .*\d"
    assert all(re.fullmatch(pattern, line) for line in lines), lines
    early = divergence_verdict(SignalBank().observe(0, {"grad_norm": 1.0}), "trainer")
    text = " ".join((*verdict.evidence, *early.evidence))
    assert not re.search(r"CUSUM|famil|\bz\b|baseline", text), text


def test_nan_is_no_value_that_was_not_reported():
    bank = steady("loss", 1.0)
    assert figure(bank, loss=math.nan).startswith("loss: NaN or infinite; its usual range is 0.5")


def test_the_next_agent_shows_the_newest_values_until_a_step_closes():
    bank = steady("loss", 1.0)
    state = bank.observe(40, {"loss": 1.1})
    following = SignalBank()
    following.resume(through_json(bank.save()))
    (known,), (row,) = following.latest_state.signals, state.signals
    assert (known.value, known.z, known.is_broken) == (row.value, row.z, False)


def test_a_value_below_what_counts_is_not_given_as_its_usual_one():
    """A reference KL of 0.001 is scored as 0.03: nobody has seen that value."""
    bank, rng = SignalBank(), random.Random(1)
    for step in range(40):
        bank.observe(step, {"ref_kl": 0.001, "reward": rng.gauss(0.5, 0.02)})
    for step in range(40, 46):
        state = bank.observe(step, {"ref_kl": 2.0, "reward": rng.gauss(0.1, 0.02)})
    summary = divergence_verdict(state, "trainer").summary
    assert "KL rose from at most 0.03 to 2 (since step 40)" in summary
