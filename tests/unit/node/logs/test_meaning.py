"""Keys that no framework names, read by what their words mean."""

import json
import shlex

import pytest

from dfx_agent.catalogue.native.meaning import meaning_of
from dfx_agent.catalogue.native.signal_sources import input_of
from dfx_agent.judge.divergence.inputs import LiveInputs
from dfx_agent.node.logs.key_map import NO_MAP, parse
from dfx_agent.node.logs.reader import open_logs, read

SIGNALS = {
    "reward": "reward_mean mean_reward rewards/reward/mean train/avg_score episode_return rew "
    "eval/reward answer_accuracy env/all/reward/total trainReward pass@1 success_rate",
    "ref_kl": "kl_div train/ref_kl kl_to_reference actor/kl_loss kl@mean",
    "policy_kl": "approx_kl ppo/policy_kl old_approx_kl",
    "mismatch_kl": "optim/kl_sample_train_v1 infer_kl",
    "grad_norm": "gradient_norm gnorm train/grad_norm gradNorm policy/grad_norm",
    "clip_fraction": "clip_frac pg_clipfrac policy_clip_ratio",
    "truncation": "truncated_frac response/clipped_ratio",
    "entropy": "policy_entropy entropy_mean ent",
    "response_length": "mean_response_length avg_response_length completion_len "
    "env/all/ac_tokens_per_turn output_tokens_mean",
    "loss": "policy_loss train/total_loss pg_loss vf_loss",
}
NO_SIGNALS = """reward_std reward_max kl_coef target_kl entropy_coef learning_rate max_grad_norm
    grad_norm_clip prompt_length max_response_length tokens_per_second time/train val_loss
    vf_clipfrac advantages/mean num_rewards best_reward step epoch reward_baseline x
    rewards/chosen rewards/rejected rewards/margins LENGTH_GAMING/accuracy length_reward"""


@pytest.mark.parametrize(
    ("key", "signal"), [(key, signal) for signal, keys in SIGNALS.items() for key in keys.split()]
)
def test_words_mean_a_signal(key, signal):
    meaning = meaning_of(key)
    assert meaning is not None
    assert meaning.signal == signal


@pytest.mark.parametrize("key", NO_SIGNALS.split())
def test_settings_extremes_and_other_quantities_mean_none(key):
    assert meaning_of(key) is None


def write(path, rows):
    path.write_text("".join(json.dumps({"step": i, **row}) + "\n" for i, row in enumerate(rows)))
    return path


def chosen(tmp_path, **columns):
    """signal -> the value of its first row."""
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    run = read(write(tmp_path / "log", rows))
    found = run.rows[0][1]
    return {key.partition("/")[2]: v for key, v in found.items() if key.startswith("signal/")}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("mean_reward", "mean_question_reward"),
        ("train/mean_reward", "eval/mean_reward"),
        ("mean_reward", "mean_reward_ema"),
        ("mean_reward", "batch_accuracy"),
        ("Reward", "avg_reward"),
        ("env/reward/total", "test/env/reward/total"),
    ],
)
def test_the_clearer_of_two_keys_is_read(tmp_path, better, worse):
    for keys in ((better, worse), (worse, better)):
        columns = {key: [0.25 if key == better else 0.5] * 3 for key in keys}
        assert chosen(tmp_path, **columns, x=[1.0] * 3)["reward"] == 0.25


def test_an_evaluation_is_the_reward_where_training_has_none(tmp_path):
    assert chosen(tmp_path, **{"eval/reward": [0.5] * 3}) == {"reward": 0.5}


def test_a_loss_of_the_policy_goes_before_that_of_the_critic(tmp_path):
    found = chosen(tmp_path, my_vf_loss=[9.0] * 3, my_pg_loss=[0.5] * 3)
    assert found == {"loss": 0.5}


def test_a_known_name_wins_over_a_meaning(tmp_path):
    rows = [{"reward": 0.5, "mean_reward": 0.25, "kl": 0.1, "grad_norm": 1.0}] * 3
    run = read(write(tmp_path / "log", rows))
    assert run.framework == "trl"
    assert run.rows[0][1] == {"reward": 0.5, "mean_reward": 0.25, "kl": 0.1, "grad_norm": 1.0}
    assert run.warnings == []


@pytest.mark.parametrize(
    ("keys", "framework"),
    [
        ("loss lr time", ""),
        ("return", ""),
        ("value_loss policy_loss ep_rew_mean fps", ""),
        ("time/fps train/loss train/std train/n_updates rollout/ep_rew_mean", ""),
        ("loss grad_norm learning_rate epoch", "trl"),
        ("actor/pg_loss x y z", "verl"),
        # a fork writes the names of the original, and is recognised by a name of its own
        ("train/pg_clipfrac rollout/raw_reward", "slime"),
        ("train/pg_clipfrac rollout/raw_reward train/train_rollout_kl", "miles"),
    ],
)
def test_common_words_name_no_framework(tmp_path, keys, framework):
    rows = [{"step": i, **dict.fromkeys(keys.split(), 0.5)} for i in range(3)]
    assert read(write(tmp_path / "log", rows)).framework == framework


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ("loss reward kl", ""),
        ("reward kl response_length", ""),
        ("loss reward kl grad_norm", ""),
        ("loss reward reward_std entropy grad_norm learning_rate epoch eval_x", ""),
        ("train/loss train/reward train/kl train/grad_norm", ""),
        ("loss reward kl completion_length", "trl"),
        ("train/loss train/reward train/kl train/frac_reward_zero_std", "trl"),
        ("actor/pg_loss x y", "verl"),
    ],
)
def test_the_framework_is_named_only_if_its_own_keys_are_seen(tmp_path, keys, name):
    rows = [{"step": i, **dict.fromkeys(keys.split(), 0.5)} for i in range(3)]
    (log,) = open_logs(write(tmp_path / "log", rows))
    assert len(list(log.rows())) == 3
    assert log.framework_name == name


@pytest.mark.parametrize(
    ("key", "values", "reason"),
    [
        ("clip_frac", [0.1, 1.7, 0.1], "is not read as clip_fraction: 1.7 is not between 0 and 1"),
        ("my_gradient_norm", [1.0, -2.0, -3.0], "is not read as grad_norm: -2 is below 0"),
        ("mean_response_len", [0.5, 0.25, 0.5], "0.5 is no number of tokens"),
        ("mean_response_len", [100, -1, -1], "is not read as response_length: -1 is below 0"),
        ("my_entropy", [-0.5, -0.25, 0.5], "is not read as entropy: 2 of 3 values are below 0"),
        ("entropy_loss", [-0.5, -0.25, 0.5], "a term of the loss, or a continuous policy"),
    ],
)
def test_values_that_contradict_the_meaning_end_the_guess(tmp_path, key, values, reason):
    rows = [{"mean_reward": 0.5, key: value} for value in values]
    run = read(write(tmp_path / "log", rows))
    assert run.rows[0][1].items() <= {"signal/reward": 0.5, key: values[0]}.items()
    assert any(reason in line and key in line for line in run.warnings)


def test_a_contradiction_far_behind_ends_the_guess_there(tmp_path):
    rows = [{"mean_reward": 0.5, "clip_frac": 1.5 if i == 400 else 0.5} for i in range(500)]
    run = read(write(tmp_path / "log", rows))
    assert sum("signal/clip_fraction" in values for _, values in run.rows) == 400
    assert "clip_frac is read as clip_fraction no longer: 1.5 is not" in run.warnings[0]
    assert "clip_frac as" not in run.warnings[1]


def test_nan_and_inf_contradict_nothing(tmp_path):
    rows = [
        {"mean_reward": 0.5, "mean_gradient_norm": v} for v in (1.0, float("nan"), float("inf"))
    ]
    run = read(write(tmp_path / "log", rows))
    assert ["signal/grad_norm" in values for _, values in run.rows] == [True] * 3


def test_the_options_of_the_note_give_the_same_reading(tmp_path):
    rows = [{"mean reward": i / 8, "kl (ref)": 0.1, "clip_frac": 0.5, "x": 1.0} for i in range(9)]
    path = write(tmp_path / "log", rows)
    run = read(path)
    assert run.warnings[-1].startswith("Read by meaning: mean reward as reward, ")
    words = shlex.split(run.warnings[-1].partition("change it: ")[2])
    assert words[::2] == ["--map"] * 3
    again = read(path, key_map=parse(words[1::2]))
    assert again.rows == run.rows
    assert again.warnings == []


def test_nothing_is_said_where_nothing_was_guessed(tmp_path):
    rows = [{"reward": 0.5, "kl": 0.1}] * 3
    assert read(write(tmp_path / "log", rows), key_map=NO_MAP).warnings == []


def test_of_a_table_of_one_signal_without_a_step_the_option_is_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("my reward\n0.5\n0.25\n")
    run = read(path)
    assert "signal/reward" not in run.rows[0][1]
    assert run.warnings[1].endswith("to judge it, --map 'reward=my reward'")


def test_equally_good_keys_are_named(tmp_path):
    rows = [{"math_reward": 0.5, "code_reward": 0.25, "my_kl": 0.1}] * 3
    run = read(write(tmp_path / "log", rows))
    assert run.rows[0][1]["signal/reward"] == 0.25
    assert run.warnings[0] == "code_reward is read as reward; equally good: math_reward"


# ------------------------------------------------------------------------------------------- live


def test_a_live_key_that_no_name_knows_is_read_by_meaning():
    inputs = LiveInputs()
    assert inputs.find("mine", "mean_reward") == input_of("mine", "signal/reward")
    assert inputs.find("mine", "x/strange_reward") is None
    assert inputs.find("mine", "eval/mean_reward") is None


def test_of_two_live_keys_the_better_one_is_read_from_when_it_is_reported():
    inputs = LiveInputs()
    assert inputs.find("mine", "mean_accuracy") is not None
    assert inputs.find("mine", "mean_reward") is not None
    assert inputs.find("mine", "mean_accuracy") is None


def test_a_known_live_key_wins():
    inputs = LiveInputs()
    assert inputs.find("trl", "reward") == input_of("trl", "reward")
    assert inputs.find("trl", "mean_reward") is None
