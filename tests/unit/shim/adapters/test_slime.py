"""slime: one funnel with three step axes, one timer object, rollouts and training in Ray actors."""

from __future__ import annotations

import pytest
from shapes import Shapes

# call shapes of THUDM/slime 624b824
SLIME = Shapes(
    variable="DFX_TEST_SLIME",
    stubs=("megatron", "sglang", "sglang_router", "ring_flash_attn", "wandb"),
    sources={
        "slime/__init__.py": "",
        # slime/observability/logging_utils.py:45
        "slime/observability/logging_utils.py": """
            def log(args, metrics, step_key: str):
                if args.use_wandb:
                    args.wandb.log(metrics)
        """,
        # slime/observability/timer.py:15-91
        "slime/observability/timer.py": """
            from contextlib import contextmanager
            from functools import wraps
            class Timer:
                timers, start_time = {}, {}
                def start(self, name):
                    assert name not in self.start_time, f"Timer {name} already started."
                    self.start_time[name] = 0
                def end(self, name):
                    assert name in self.start_time, f"Timer {name} not started."
                    self.timers[name] = self.timers.get(name, 0) + self.start_time.pop(name)
                @contextmanager
                def context(self, name):
                    self.start(name)
                    try:
                        yield
                    finally:
                        self.end(name)
            def timer(name_or_func):
                if isinstance(name_or_func, str):
                    return Timer().context(name_or_func)
                @wraps(name_or_func)
                def wrapper(*args, **kwargs):
                    with Timer().context(name_or_func.__name__):
                        return name_or_func(*args, **kwargs)
                return wrapper
            @contextmanager
            def inverse_timer(name):
                Timer().end(name)
                try:
                    yield
                finally:
                    Timer().start(name)
        """,
        # slime/observability/rollout_metrics.py:256
        "slime/observability/rollout_metrics.py": """
            def log_rollout_data(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
                return len(samples)
        """,
        # slime/rollout/base_types.py:19
        "slime/rollout/base_types.py": """
            def call_rollout_fn(fn, *args, evaluation: bool, **kwargs):
                return fn(*args, **kwargs, evaluation=evaluation)
        """,
        # slime/backends/megatron_utils/actor.py:374-424, role from slime/ray/train_actor.py:49
        "slime/backends/megatron_utils/actor.py": """
            class MegatronTrainRayActor:
                def train(self, rollout_id: int, rollout_data_ref, external_data=None):
                    if rollout_data_ref is not None:
                        self.train_actor(rollout_id, rollout_data_ref, external_data=external_data)
                    return rollout_id
                def train_critic(self, rollout_id: int, rollout_data):
                    return {}
                def train_actor(self, rollout_id: int, rollout_data, external_data=None):
                    return None
        """,
    },
)


@SLIME.each_place
def test_each_axis_has_its_step(where, tmp_path, dfx_dir):
    job = """
from types import SimpleNamespace as NS
from slime.observability import logging_utils
args = NS(use_wandb=False, use_tensorboard=False)
logging_utils.log(args, {"rollout/raw_reward": 5.0, "rollout/step": 3}, step_key="rollout/step")
logging_utils.log(args, {"train/loss": 0.5, "train/step": 47}, step_key="train/step")
logging_utils.log(args, {"eval/gsm8k": 0.25, "eval/step": 3}, step_key="eval/step")
"""
    seen = SLIME.run(where, job, tmp_path)
    assert seen.scalars() == {
        ("rollout/raw_reward", 3): [5.0],
        ("rollout/step", 3): [3.0],
        ("train/loss", 47): [0.5],
        ("train/step", 47): [47.0],
        ("eval/gsm8k", 3): [0.25],
        ("eval/step", 3): [3.0],
    }
    assert seen.steps() == [4]
    assert seen.identity["framework"] == "slime"
    assert seen.num_errors == 0


@SLIME.each_place
def test_timers_are_stages_and_waiting_for_data_is_a_wait(where, tmp_path, dfx_dir):
    job = """
from slime.observability.timer import Timer, inverse_timer, timer
Timer().start("train_wait")
with inverse_timer("train_wait"), timer("train"):
    with timer("ref_log_probs"):
        pass
    with timer("actor_train"):
        pass
@timer
def update_weights():
    return "sent"
assert update_weights() == "sent"
try:
    Timer().end("never_started")
except AssertionError as error:
    assert "not started" in str(error)
else:
    raise SystemExit("the job's own error is gone")
"""
    seen = SLIME.run(where, job, tmp_path)
    assert seen.names("stage") == ["ref_logprob", "actor_update", "train", "weight_sync"]
    assert seen.names("wait") == ["queue"]
    assert seen.num_errors == 0


@SLIME.each_place
def test_rollouts_say_what_they_are(where, tmp_path, dfx_dir):
    job = """
from slime.rollout.base_types import call_rollout_fn
def generate(args, rollout_id, data_source, evaluation=False):
    return []
call_rollout_fn(generate, None, 4, None, evaluation=False)
call_rollout_fn(generate, None, 4, None, evaluation=True)
"""
    seen = SLIME.run(where, job, tmp_path)
    assert seen.names("stage") == ["rollout", "validation"]
    assert seen.steps() == [4]
    assert seen.identity["role"] == "rollout"


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        # of four samples one has an engine that tells no version
        (
            ([], ["3"], ["3", "3"], ["2", "3", "5"]),
            {"ratio": 1 / 3, "samples": 1.0, "max_span": 3.0},
        ),
        ((["3"], ["3"]), {"ratio": 0.0, "samples": 0.0, "max_span": 0.0}),
        ((["default"], ["default", "1"]), {"ratio": 0.5, "samples": 1.0}),
        (([], []), {}),
    ],
)
def test_samples_whose_weights_changed(versions, told, tmp_path, dfx_dir):
    job = f"""
from types import SimpleNamespace as NS
from slime.observability.rollout_metrics import log_rollout_data
samples = [NS(weight_versions=list(each)) for each in {versions!r}]
assert log_rollout_data(4, None, samples, None, 1.0) == len(samples)
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
    seen = SLIME.on_copy(job, tmp_path)
    found = seen.scalars()
    del found["there", -1]
    assert found == {(f"pipeline/partial/{name}", 4): [value] for name, value in told.items()}
    assert seen.num_errors == 0


def test_training_actors_have_a_role_and_a_step(tmp_path, dfx_dir):
    job = """
from slime.backends.megatron_utils.actor import MegatronTrainRayActor
actor = MegatronTrainRayActor()
actor.role = "critic"
assert actor.train(6, None) == 6
"""
    seen = SLIME.on_copy(job, tmp_path)
    assert seen.identity["role"] == "critic"
    assert seen.steps() == [6]


SAMPLES = """
from types import SimpleNamespace as NS
import torch
from slime.observability.rollout_metrics import log_rollout_data
from slime.backends.megatron_utils.actor import MegatronTrainRayActor
import dfx_agent.shim as dfx
dfx.set_step(4)
def sample(index, tokens, mask, log_probs, reward=1.0):  # slime/utils/types.py:94
    return NS(index=index, group_index=index // 2, tokens=tokens, response_length=2,
              loss_mask=mask, rollout_log_probs=log_probs, reward=reward, weight_versions=[])
samples = [sample(i, [7, 8, 9 + i], [1, 1], [-0.5, -0.25]) for i in range(4)]
"""


def test_a_rollout_and_what_ranks_are_given_of_it_have_the_same_samples(tmp_path, dfx_dir):
    job = f"""{SAMPLES}
log_rollout_data(4, None, samples, None, 1.0)
actor = MegatronTrainRayActor()
actor.role = "actor"
data = {{
    "sample_indices": [3, 1, 2, 0], "response_lengths": [2] * 4, "rewards": [0.5] * 4,
    "tokens": [torch.tensor(samples[i].tokens) for i in (3, 1, 2, 0)],
    "loss_masks": [torch.ones(2, dtype=torch.int)] * 4,
    "rollout_log_probs": [torch.zeros(1)] * 4,  # a slice, as context parallelism leaves it
    "num_microbatches": [2],
}}
actor.train(4, data)
"""
    seen = SLIME.on_copy(job, tmp_path)
    made, given = seen.ledger("rollout"), seen.ledger("actor_update")
    for key in (
        ("num_rows", ""), ("mask_sum", "loss_mask"), ("multiset", "index"), ("aligned", "tokens"),
    ):  # fmt: skip
        assert made[key] == given[key]
    assert made["order", "index"] != given["order", "index"]
    assert (made["smallest_group", "group_index"], made["num_misaligned", "rollout_log_probs"]) == (
        [2.0],
        [0.0],
    )
    assert not [key for key in given if "log_prob" in key[1]]
    assert seen.num_errors == 0


def test_a_rollout_without_some_columns_has_none_of_them(tmp_path, dfx_dir):
    job = f"""{SAMPLES}
samples[1].loss_mask, samples[2].rollout_log_probs, samples[3].reward = None, None, {{"a": 1}}
log_rollout_data(4, None, samples, None, 1.0)
samples[1].loss_mask, samples[2].rollout_log_probs = [1, 1], [float("nan")]
log_rollout_data(4, None, samples, None, 1.0)
"""
    seen = SLIME.on_copy(job, tmp_path)
    made = seen.ledger("rollout")
    assert made["mask_sum", "loss_mask"] == [8.0]  # of the second only
    assert made["num_misaligned", "rollout_log_probs"] == [1.0]
    assert made["num_nonfinite", "rollout_log_probs"] == [1.0]
    assert ("num_nonfinite", "reward") not in made
    assert seen.num_errors == 0
