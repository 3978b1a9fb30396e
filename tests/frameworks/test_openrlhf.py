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


MAKER = """
import torch
from types import SimpleNamespace as NS
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
def sample(length, actions, reward):
    width = length - 1
    return Experience(
        sequences=torch.arange(1, length + 1).unsqueeze(0),
        attention_mask=torch.ones(1, length, dtype=torch.long),
        action_mask=torch.tensor([[0] * (width - actions) + [1] * actions]),
        rewards=torch.tensor([reward]), response_length=torch.tensor([actions]),
        total_length=torch.tensor([float(length)]), prompts=["p"], labels=["l"],
        info={"reward": torch.tensor([reward]), "logged": torch.tensor([float("nan")])},
    )
class Maker(RemoteExperienceMaker):
    def __init__(self):
        self.args = NS(train=NS(dynamic_batch_enable=False), rollout=NS(micro_batch_size=2))
        self.tokenizer = NS(pad_token_id=0)
    def make_experience(self, samples_list):  # there: models in other actors
        for batch in samples_list:
            batch.action_log_probs = torch.zeros(batch.action_mask.shape)
        return samples_list
    def compute_advantages_and_returns(self, experiences):
        for batch in experiences:
            batch.advantages = batch.returns = torch.ones(batch.action_mask.shape)
        return experiences
"""


def test_what_the_update_is_given_is_one_crossing_of_all_samples(dfx_dir):
    job = f"""{MAKER}
import dfx_agent.shim as dfx
dfx.set_step(3)
made = Maker().make_experience_batch([sample(6, 2, 0.5), sample(9, 4, 1.0), sample(4, 1, 0.0)])
assert [len(batch.sequences) for batch in made] == [2, 1]
"""
    seen = observe(job, stubs=NEED_A_DEVICE)
    fields = seen.ledger("actor_update")
    assert fields["num_rows", ""] == [3.0]
    assert fields["mask_sum", "action_mask"] == [7.0]
    assert fields["num_unread", ""] == [0.0]
    assert ("aligned", "advantages") in fields  # by the framework's own index
    assert ("aligned", "values") not in fields  # there is no critic
    assert not any(sum(v) for (name, _), v in fields.items() if name.startswith("num_mis"))
    assert not any(sum(v) for (name, _), v in fields.items() if name == "num_nonfinite")
    assert {record.step for record in seen.records if record.kind == "ledger"} == {3}
    assert seen.num_errors == 0


def test_rewards_that_outgrew_their_samples_are_seen(dfx_dir):
    """0.11.2: batches of two and of one row, joined again, have four rewards for three samples."""
    job = f"""{MAKER}
import dfx_agent.shim as dfx
dfx.set_step(3)
first = Experience.concat_experiences([sample(6, 2, 0.5), sample(9, 4, 1.0)], 0)
for each in (first, third := sample(4, 1, 0.0)):
    each.index = list(range(len(each.sequences)))
both = Experience.concat_experiences([first, third], 0)
assert len(both.sequences) == 3 and both.rewards.numel() == 4
Maker().make_experience_batch([both])
"""
    seen = observe(job, stubs=NEED_A_DEVICE)
    fields = seen.ledger("actor_update")
    assert fields["num_rows", ""] == [3.0]
    assert fields["num_misaligned", "rewards"] > [0.0]


def test_the_makers_own_methods_are_the_other_two_boundaries(dfx_dir):
    job = f"""{MAKER}
import dfx_agent.shim as dfx
dfx.set_step(3)
batch = sample(6, 2, 0.5)
batch.index = [0]
for method in ("make_experience", "compute_advantages_and_returns"):
    try:
        getattr(RemoteExperienceMaker, method)(Maker(), [batch])
    except AttributeError:
        pass  # no models here: what the job raises stays its own
"""
    seen = observe(job, stubs=NEED_A_DEVICE)
    for boundary in ("reward", "advantage"):
        assert seen.ledger(boundary)["mask_sum", "action_mask"] == [2.0]
    assert ("num_nonfinite", "info.logged") not in seen.ledger("reward")
    assert seen.num_errors == 0
