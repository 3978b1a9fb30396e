"""OpenRLHF's own trainer base, loggers and worker base; models and engines exist in name only."""

from __future__ import annotations

import pytest
from observed_job import observe

# imported from a file where it is used: the package itself asks for CUDA packages
pytest.importorskip("openrlhf", reason="no openrlhf; `make test-frameworks` installs it")
pytest.importorskip("ray", reason="no ray; `make test-frameworks` installs it")

NEED_A_DEVICE = (
    "deepspeed", "flash_attn", "vllm", "bitsandbytes", "peft", "optimum", "torchdata", "jsonlines",
    "loralib", "einops", "transformers_stream_generator", "pylatexenc",
)  # fmt: skip

TRAINER = """
import tempfile
from types import SimpleNamespace as NS
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.utils.logging_utils import TensorboardLogger
loggers = NS(logging_steps=1, tensorboard_dir=tempfile.mkdtemp(), wandb=NS(run_name="run"))
class Trainer(BasePPOTrainer):
    def __init__(self, tensorboard_logger):
        self.args = NS(logger=loggers, ckpt=NS(save_steps=100))
        self.wandb_logger, self.tensorboard_logger = None, tensorboard_logger
    def fit(self, global_step=0):
        pass
"""


def test_each_report_is_recorded_once_and_ends_its_step(dfx_dir):
    job = f"""{TRAINER}
trainer = Trainer(TensorboardLogger(NS(logger=loggers)))
status = {{"policy_loss": 0.5, "ppo_kl": -0.01, "generated_samples": ["x", 1.0], "kl": None}}
trainer.save_logs_and_checkpoints(1, status)
trainer.save_logs_and_checkpoints(2, logs_dict={{"policy_loss": 0.25}}, client_states={{}})
trainer.tensorboard_logger.log_eval(2, {{"eval_gsm8k_pass1": 0.75}})
"""
    seen = observe(job, stubs=NEED_A_DEVICE)
    assert seen.scalars() == {
        ("policy_loss", 1): [0.5],
        ("ppo_kl", 1): [-0.01],
        ("policy_loss", 2): [0.25],
        ("eval_gsm8k_pass1", 2): [0.75],
    }
    assert seen.steps() == [2, 3]
    assert seen.identity["framework"] == "openrlhf"
    assert seen.num_errors == 0


def test_metrics_are_there_without_any_tracker(dfx_dir):
    job = f"{TRAINER}\nTrainer(None).save_logs_and_checkpoints(4, {{'actor_grad_norm': 1.5}})\n"
    seen = observe(job, stubs=NEED_A_DEVICE)
    assert seen.scalars() == {("actor_grad_norm", 4): [1.5]}


def test_a_forward_in_a_worker_is_the_stage_of_its_model(dfx_dir):
    job = """
from types import SimpleNamespace as NS
from openrlhf.trainer.ray.launcher import BaseModelActor
class ReferenceModelActor(BaseModelActor):
    strategy = NS(is_rank_0=lambda: False)
    def forward(self, sequences):
        return sequences
    def append(self, sequences):
        return None
class RemoteClass(ReferenceModelActor):  # as Ray derives it
    pass
actor = RemoteClass(2, 1, "127.0.0.1", 12345)
assert actor.execute_batch("forward", {"sequences": [1, 2]}, 0, 2) == [1, 2]
actor.execute_batch("append", {"sequences": [1]}, 0, 1)
"""
    seen = observe(job, stubs=NEED_A_DEVICE)
    assert seen.names("stage") == ["ref_logprob"]
    assert (seen.identity["role"], seen.identity["rank"]) == ("ref", 1)
    assert seen.identity["world_size"] == 2
    assert seen.num_errors == 0


def test_every_part_finds_what_it_patches(dfx_dir):
    job = """
import openrlhf.trainer.ppo_trainer, openrlhf.trainer.ray.ppo_actor
import openrlhf.trainer.ray.ppo_critic
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
    parts = observe(job, stubs=NEED_A_DEVICE).parts()
    own = ("trainer", "loggers", "rollout", "experience", "workers", "actor", "critic")
    assert {name: parts[name] for name in own} == dict.fromkeys(own, 1.0)
