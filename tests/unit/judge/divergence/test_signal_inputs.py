"""Every framework's own words for the same thing become the same signal."""

import math

import pytest

from dfx_agent.alerting.evaluator import Evaluator
from dfx_agent.catalogue.native import load
from dfx_agent.catalogue.native.signal_sources import ABORTED, input_of, source_of
from dfx_agent.judge.divergence.aborted_share import NUM_STEPS, AbortedShare, TimeoutShare
from dfx_agent.judge.divergence.bank import SignalBank
from dfx_agent.judge.divergence.inputs import (
    MISSING_STEPS,
    ONLY_MODEL_STEPS,
    SignalInputs,
)
from dfx_agent.judge.divergence.symptoms import StepSignals


def signals(framework, **told):
    """Signals of one step, of native keys and values."""
    values = {}
    for key, value in told.items():
        found = input_of(framework, key)
        if found is not None:
            values[found.source] = found.scale * value
    return SignalInputs().signals(values)


@pytest.mark.parametrize(
    ("framework", "told"),
    [
        ("verl", {"response_length/clip_ratio": 0.25}),
        ("roll", {"token/total_response_length/clip": 32, "system/batch_size": 128}),
        ("rlinf", {"rollout/fraction_of_samples_properly_ended": 0.75}),
        ("lightrft", {"rollout_truncated_ratio": 0.25}),
        ("openrlhf", {"rollout/truncated_rate": 0.25}),
        ("trl", {"completions/clipped_ratio": 0.25}),
        ("slime", {"rollout/truncated_ratio": 0.25}),
        ("areal", {"ppo_actor/no_eos_ratios/avg": 0.25}),
        ("prime_rl", {"is_truncated/all/mean": 0.25, "is_truncated/all/max": 1.0}),  # v0.5, v0.6
        ("prime_rl", {"train/agg/all/is_truncated/mean": 0.25}),  # v0.7
        ("prime_rl", {"train/agg/all/solver/is_truncated/mean": 0.25}),  # since v0.8
    ],
)
def test_truncation_of_every_framework_is_a_signal(framework, told):
    assert signals(framework, **told) == {"truncation": 0.25}


@pytest.mark.parametrize(
    "told",
    [
        {"token/total_response_length/clip": 32},
        {"token/total_response_length/clip": 32, "system/batch_size": 0},
        {"actor/max_len_mask_ratio": 1.0},  # 1 as well where the mask is off
    ],
)
def test_without_a_share_there_is_no_truncation(told):
    assert signals("roll", **told) == {}


@pytest.mark.parametrize(
    ("framework", "told"),
    [
        ("prime_rl", {"train/agg/all/has_error/mean": 0.25}),
        ("prime_rl", {"train/agg/all/solver/has_error/mean": 0.25}),
        ("verl", {"response/aborted_ratio": 0.25}),
    ],
)
def test_the_aborted_share_of_the_whole_batch_is_an_input(framework, told):
    assert signals(framework, **told) == {ABORTED: 0.25}


@pytest.mark.parametrize(
    "key",
    [
        "train/agg/all/has_error/max",
        "train/rare_env/all/has_error/mean",
        "train/rare_env/all/solver/has_error/mean",
        "filters/all/is_filtered",
        "train/agg/all/solver/is_filtered/mean",
    ],
)
def test_one_environment_or_a_filter_is_not_the_batch(key):
    assert signals("prime_rl", **{key: 1.0}) == {}


def test_what_a_filter_takes_is_not_aborted():
    for key in ("filters/all/is_filtered", "train/agg/all/solver/is_filtered/mean"):
        assert load("prime_rl").find(key).metric == "dfx_sample_filter_ratio"


def test_reward_by_agent_is_the_reward():
    assert signals("prime_rl", **{"train/agg/all/solver/reward/mean": 0.5}) == {"reward": 0.5}


@pytest.mark.parametrize("signal", ["loss", "grad_norm"])
@pytest.mark.parametrize("framework", ["", "verl"])
@pytest.mark.parametrize("name", ["torch/{}", "torch/actor/{}", "torch/policy/{}"])
def test_the_model_that_makes_the_steps_gives_the_signal(framework, name, signal):
    assert signals(framework, **{name.format(signal): 0.2}) == {signal: 0.2}


def test_two_models_never_mix_and_the_policy_goes_before_an_optimizer_without_a_name():
    inputs = SignalInputs()
    models = ("", "optimizer_2/", "critic/", "actor/")
    keys = {f"torch/{model}loss": float(i) for i, model in enumerate(models)}
    values = {found.source: keys[key] for key in keys if (found := input_of("", key))}
    assert inputs.signals(values) == {"loss": 3.0}
    del values[input_of("", "torch/actor/loss").source]
    assert inputs.signals(values) == {}


def test_a_model_without_a_known_name_counts_once_it_has_long_been_the_only_one():
    inputs = SignalInputs()
    source, other = (input_of("", f"torch/optimizer_{i}/loss").source for i in (2, 3))
    for _ in range(2 * ONLY_MODEL_STEPS):
        assert inputs.signals({source: 1.0, other: 2.0}) == {}
    found = [inputs.signals({source: 1.0}) for _ in range(2 * ONLY_MODEL_STEPS)]
    begin = found.index({"loss": 1.0})
    assert ONLY_MODEL_STEPS - 1 <= begin <= ONLY_MODEL_STEPS
    assert found[begin:] == [{"loss": 1.0}] * len(found[begin:])
    assert inputs.signals({input_of("", "torch/loss").source: 5.0}) == {}


def test_a_critic_says_nothing_of_the_policy_also_alone():
    assert input_of("", "torch/critic/loss") is None
    assert input_of("", "torch/critic/grad_norm") is None


def fires(shares):
    bank, evaluator = SignalBank(), Evaluator()
    seen = []
    for step, share in enumerate(shares):
        found = evaluator.observe(bank.observe(step, {ABORTED: share}))
        seen.append(any(f.alert.name == "DfxRolloutAborted" for f in found))
    return seen


def test_another_metric_speaks_where_the_first_one_falls_silent():
    score, reward = input_of("verl", "critic/score/mean"), input_of("verl", "critic/rewards/mean")
    inputs = SignalInputs()
    inputs.signals({score.source: 1.0})
    found = [inputs.signals({reward.source: 2.0}) for _ in range(MISSING_STEPS + 1)]
    reported = [step.get("reward") for step in found]
    assert reported == [None] * (MISSING_STEPS - 1) + [2.0] * 2
    assert [sorted(step.changed) for step in found[-3:]] == [[], ["reward"], []]


def test_a_metric_that_pauses_while_none_reports_speaks_on():
    score, reward = input_of("verl", "critic/score/mean"), input_of("verl", "critic/rewards/mean")
    inputs = SignalInputs()
    inputs.signals({score.source: 1.0})
    for _ in range(2 * MISSING_STEPS):
        assert not inputs.signals({})
    assert inputs.signals({score.source: 1.0, reward.source: 2.0}) == {"reward": 1.0}


def test_what_one_metric_taught_says_nothing_of_another():
    bank = SignalBank()
    for step in range(100):
        bank.observe(step, StepSignals(reward=0.5 + 0.01 * (step % 2), entropy=1.0))
    other = StepSignals(reward=-40.0, entropy=1.0)
    other.changed = frozenset({"reward"})
    bank.observe(100, other)
    for step in range(101, 140):
        state = bank.observe(step, StepSignals(reward=-40.0 - 0.5 * (step % 2), entropy=1.0))
        assert not [row for row in state.symptoms if row.is_active]


def test_one_failed_rollout_of_256_is_no_alert():
    assert not any(fires([0, 0, 1 / 256] * 10))


def test_one_failure_in_a_small_batch_is_no_alert():
    assert not any(fires([0, 0, 0, 1 / 2, 0, 0, 1, 0] * 4))


def test_a_share_that_stays_is_an_alert_and_ends():
    seen = fires([0.0] * 8 + [0.3] * 8 + [0.0] * 8)
    assert not any(seen[:12])
    assert seen[15]
    assert not seen[-1]


def test_the_share_needs_its_steps_and_survives_a_restart():
    share = AbortedShare()
    for _ in range(NUM_STEPS - 1):
        share.observe({ABORTED: 0.5})
        share.observe({})
        share.observe({ABORTED: math.nan})
    assert share.recent_median is None
    share.observe({ABORTED: 0.5})
    again = AbortedShare()
    again.resume(share.save())
    assert share.recent_median == again.recent_median == 0.5


def test_the_share_of_requests_that_time_out_counts_steps_without_failures():
    sources = SignalInputs()
    share = TimeoutShare()
    for step in range(24):
        # the trainer dropped half of what the rollout returned
        values = {("dfx_step_samples", ()): 126.0, ("dfx_rollouter_samples", ()): 252.0}
        if step >= 8:
            values |= {("dfx_step_rollout_failures", (("why", "ReadTimeout"),)): 9.0}
            values |= {("dfx_step_rollout_failures", (("why", "ConnectError"),)): 9.0}
        share.observe(sources.signals(values))
        assert (share.rise or 0) == (pytest.approx(9 / 270) if step >= 12 else 0)


def test_a_failure_is_a_source_only_of_the_whole_run():
    assert source_of("dfx_step_rollout_failures", {"why": "timeout", "agent": "a"}) is not None
    assert source_of("dfx_step_rollout_failures", {"why": "timeout", "env": "math"}) is None
