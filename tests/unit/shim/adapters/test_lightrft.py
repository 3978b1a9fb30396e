"""LightRFT: every rank reports its own numbers; stages are methods of one process."""

from __future__ import annotations

import pytest
from shapes import Shapes

from dfx_agent.catalogue.native import load

# call shapes of opendilab/LightRFT 49e62cb
LIGHTRFT = Shapes(
    variable="DFX_TEST_LIGHTRFT",
    stubs=(
        "vllm", "sglang", "deepspeed", "flash_attn", "peft", "accelerate", "trl", "easydict",
        "decord", "qwen_vl_utils", "torchaudio", "torchvision", "librosa", "bitsandbytes",
        "optimum", "matplotlib",
    ),
    sources={
        "lightrft/__init__.py": "",
        # lightrft/trainer/ppo_trainer.py:19, 397, 610, 697
        "lightrft/trainer/ppo_trainer.py": """
            class PPOTrainer:
                def training_step(self, experience, global_steps, entropy_mask=None):
                    return {}
                def save_logs_and_checkpoints(
                    self, args, global_step, step_bar, logs_dict={}, client_states={}
                ):
                    for k, v in logs_dict.items():
                        self._tensorboard.add_scalar(k, v, global_step)
                    if global_step % args.save_steps == 0:
                        self._save_checkpoint(args, f"global_step{global_step}", client_states)
                def _save_checkpoint(self, args, tag, client_states):
                    pass
        """,
        # lightrft/trainer/spmd_ppo_trainer.py:38, 167, 473
        "lightrft/trainer/spmd_ppo_trainer.py": """
            class SPMDPPOTrainerBase:
                def ppo_train(self, global_steps=0):
                    self.strategy.update_engine_weights(None)
                    return {"policy_loss": 0.0}
        """,
        # lightrft/strategy/strategy_base.py:60, 691, 710, 1014
        "lightrft/strategy/strategy_base.py": """
            class StrategyBase:
                def update_engine_weights(self, actor):
                    self.wakeup_inference_engine()
                def wakeup_inference_engine(self):
                    pass
                def maybe_sleep_inference_engine(self):
                    pass
                def gather_and_generate(
                    self, sampling_params, all_prompt_token_ids=None, all_prompts=None
                ):
                    return [{"output_token_ids": [1] * n} for n in all_prompt_token_ids or ()]
        """,
        # lightrft/trainer/fast_exp_maker.py:383-1636
        "lightrft/trainer/fast_exp_maker.py": """
            class RewardComputationEngine:
                def compute_rewards(self, outputs, vlm_mode, device):
                    pass
            class FastExperienceMaker:
                def make_experience_list(self, all_prompts, **generate_kwargs):
                    samples = self.generate_samples(all_prompts)
                    experiences = self._make_experience_list_by_model(samples)
                    experiences, rewards = self._process_experiences(experiences)
                    return self._compute_advantages_and_returns(experiences, rewards, {})
                def generate_samples(self, all_prompts):
                    return all_prompts
                def _make_experience_list_by_model(self, samples):
                    RewardComputationEngine().compute_rewards(samples, False, "cpu")
                    return samples
                def _process_experiences(self, experiences):
                    return experiences, [0.0]
                def _compute_advantages_and_returns(self, experiences, rewards, generate_kwargs):
                    return experiences
        """,
        # lightrft/trainer/fast_exp_maker_partial.py:96, 142, 174, 491, 529, 601 in pull request 29
        # (6f3c161); here half of the outputs use up the budget, and what is generated on does not
        "lightrft/trainer/fast_exp_maker_partial.py": """
            from types import SimpleNamespace
            from lightrft.trainer.fast_exp_maker import FastExperienceMaker
            class PartialFastExperienceMaker(FastExperienceMaker):
                def __init__(self, strategy, partial_percent=0.7, max_token_budget=1024):
                    self.strategy = strategy
                    self.partial_percent = partial_percent
                    self.max_token_budget = max_token_budget
                    self.regen_buffer = {"output": [], "labels": []}
                    self.noregen_buffer = {"output": [], "labels": []}
                def generate_samples(
                    self, all_prompts, all_images=None, all_videos=None, **generate_kwargs
                ):
                    budget = self.max_token_budget
                    if all_prompts is not None:
                        params = {"max_new_tokens": budget}
                        self.strategy.gather_and_generate(params, [budget] * len(all_prompts))
                        for prompt in all_prompts:
                            kind = "regen" if prompt >= budget else "noregen"
                            output = SimpleNamespace(output_token_ids=[1] * min(prompt, budget))
                            self._add_to_buffer(kind, "output", [output])
                            self._add_to_buffer(kind, "labels", ["label"])
                    taken = self._get_from_buffer("noregen", 1)
                    return taken, self._regenerate_from_buffer(1, False)
                def _add_to_buffer(self, buffer_type, data_name, data):
                    buffer = self.regen_buffer if buffer_type == "regen" else self.noregen_buffer
                    buffer[data_name].extend(data)
                def _get_from_buffer(self, buffer_type, count=None):
                    buffer = self.regen_buffer if buffer_type == "regen" else self.noregen_buffer
                    result = {}
                    for key, items in buffer.items():
                        result[key] = items[:count] if items else ()  # there: an empty tensor
                        buffer[key] = items[count:]
                    return result
                def _regenerate_from_buffer(self, num_needed, is_multimodal, **kwargs):
                    data = self._get_from_buffer("regen", num_needed)
                    if not data["output"]:
                        return {}
                    data["output"][0] = SimpleNamespace(output_token_ids=[2] * 3)
                    return data
        """,
    },
)  # fmt: skip

# lightrft asks for a device while it is imported, and for a class that transformers 5 has renamed
CPU = """
import torch, transformers.processing_utils  # which loads the package a second time
import transformers
torch.cuda.current_device = lambda: 'cpu'
transformers.AutoModelForVision2Seq = transformers.AutoModel
"""


@LIGHTRFT.each_place
def test_reports_keep_the_names_that_the_trainer_gives_them(where, tmp_path, dfx_dir):
    job = """
from types import SimpleNamespace as NS
from lightrft.trainer.ppo_trainer import PPOTrainer
trainer = PPOTrainer.__new__(PPOTrainer)
trainer._wandb, trainer._tensorboard = None, NS(add_scalar=lambda *args: None)
trainer.strategy, trainer.experience_maker = NS(is_rank_0=lambda: True), NS(perf_stats=None)
args = NS(logging_steps=1, eval_steps=10, save_steps=10)
trainer.save_logs_and_checkpoints(args, 1, None, {"rollout_reward": 0.5, "policy_loss": 0.25}, {})
trainer.save_logs_and_checkpoints(args, 2, None, logs_dict={"kl": float("nan")}, client_states={})
"""
    seen = LIGHTRFT.run(where, (CPU if where == "checkout" else "") + job, tmp_path)
    scalars = seen.scalars()
    assert scalars.pop(("kl", 2)) != [0.0]
    assert scalars == {("rollout_reward", 1): [0.5], ("policy_loss", 1): [0.25]}
    assert seen.steps() == [2, 3]
    assert seen.identity["framework"] == "lightrft"
    assert seen.num_errors == 0


@LIGHTRFT.each_place
def test_every_part_finds_what_it_patches(where, tmp_path, dfx_dir):
    job = """
import lightrft.trainer.ppo_trainer, lightrft.trainer.spmd_ppo_trainer
import lightrft.trainer.fast_exp_maker, lightrft.strategy.strategy_base
import dfx_agent.shim as dfx
dfx.scalar("there", 1.0)
"""
    seen = LIGHTRFT.run(where, (CPU if where == "checkout" else "") + job, tmp_path)
    parts = seen.parts()
    assert {parts[name] for name in ("trainer", "spmd", "experience", "strategy")} == {1.0}


def test_stages_of_a_step(tmp_path, dfx_dir):
    job = """
from lightrft.trainer.fast_exp_maker import FastExperienceMaker
from lightrft.trainer.spmd_ppo_trainer import SPMDPPOTrainerBase
from lightrft.strategy.strategy_base import StrategyBase
assert FastExperienceMaker().make_experience_list(["a"]) == ["a"]
trainer = SPMDPPOTrainerBase()
trainer.strategy = StrategyBase()
assert trainer.ppo_train(7) == {"policy_loss": 0.0}
"""
    seen = LIGHTRFT.on_copy(job, tmp_path)
    assert seen.names("stage") == [
        "rollout", "reward", "old_logprob", "advantage", "advantage",
        "offload", "weight_sync", "actor_update",
    ]  # fmt: skip
    assert seen.steps() == [7]


EXPERIENCE = """
import torch
from types import SimpleNamespace as NS
from lightrft.trainer.fast_exp_maker import FastExperienceMaker
from lightrft.trainer.ppo_trainer import PPOTrainer
import dfx_agent.shim as dfx
dfx.set_step(7)
def experience(rows, actions):  # lightrft/trainer/experience_maker.py:77
    return NS(
        sequences=torch.ones(rows, actions + 3, dtype=torch.long),
        attention_mask=torch.ones(rows, actions + 3), action_mask=torch.ones(rows, actions).bool(),
        action_log_probs=torch.zeros(rows, actions), base_action_log_probs=None, values=None,
        returns=torch.zeros(rows, actions), advantages=torch.zeros(rows, actions), kl=None,
        info={"reward": torch.zeros(rows), "logged": torch.full((rows,), float("nan"))},
    )
trainer, maker = PPOTrainer.__new__(PPOTrainer), FastExperienceMaker.__new__(FastExperienceMaker)
"""


def test_experiences_are_one_crossing_and_each_trained_batch_is_another(tmp_path, dfx_dir):
    job = f"""{EXPERIENCE}
maker._compute_advantages_and_returns([experience(2, 4), experience(1, 6)], None, {{}})
broken = experience(2, 4)
broken.advantages = torch.zeros(2, 5)
broken.returns[1, 0] = float("inf")
for batch in (experience(2, 6), broken):
    trainer.training_step(batch, 7)
"""
    seen = LIGHTRFT.on_copy(job, tmp_path)
    made, trained = seen.ledger("advantage"), seen.ledger("actor_update")
    assert made["num_rows", ""] == [3.0]
    assert made["mask_sum", "action_mask"] == [14.0]
    assert made["num_misaligned", "action_log_probs"] == [0.0]
    assert trained["mask_sum", "action_mask"] == [12.0, 8.0]
    assert trained["num_misaligned", "advantages"] == [0.0, 2.0]
    assert trained["num_nonfinite", "returns"] == [0.0, 1.0]
    assert not {"values", "kl", "info.logged"} & {column for _, column in made | trained}
    assert seen.num_errors == 0


def test_packed_samples_are_left_out(tmp_path, dfx_dir):
    job = f"""{EXPERIENCE}
packed = experience(1, 9)
packed.action_mask = None
trainer.training_step(packed, 7)
maker._compute_advantages_and_returns([packed], None, {{}})
"""
    seen = LIGHTRFT.on_copy(job, tmp_path)
    assert seen.names("ledger") == []
    assert seen.num_errors == 0


@pytest.mark.parametrize("params", ["{'max_new_tokens': 4}", "SimpleNamespace(max_tokens=4)"])
def test_outputs_as_long_as_the_limit_are_truncated(params, tmp_path, dfx_dir):
    job = f"""
from types import SimpleNamespace
from lightrft.strategy.strategy_base import StrategyBase
import dfx_agent.shim as dfx
dfx.set_step(3)
strategy, params = StrategyBase(), {params}
assert len(strategy.gather_and_generate(params, all_prompt_token_ids=[4, 2, 3, 1])) == 4
strategy.gather_and_generate(params)
strategy.gather_and_generate(SimpleNamespace(), [4])
"""
    seen = LIGHTRFT.on_copy(job, tmp_path)
    assert seen.scalars() == {("rollout_truncated_ratio", 3): [0.25]}
    assert seen.num_errors == 0


PARTIAL = """
from lightrft.strategy.strategy_base import StrategyBase
from lightrft.trainer.fast_exp_maker_partial import PartialFastExperienceMaker
from lightrft.trainer.spmd_ppo_trainer import SPMDPPOTrainerBase
import dfx_agent.shim as dfx
strategy = StrategyBase()
maker = PartialFastExperienceMaker(strategy, max_token_budget=4)
"""


def of_the_partial_rollout(seen, step):
    return {
        name.removeprefix("pipeline/partial/"): values
        for (name, of_step), values in seen.scalars().items()
        if of_step == step
    }


def test_the_buffers_of_a_partial_rollout(tmp_path, dfx_dir):
    """Step 1: five prompts, three use up the budget. Step 3: what is left is taken."""
    job = f"""{PARTIAL}
dfx.set_step(1)
assert [len(part["output"]) for part in maker.generate_samples([9, 2, 9, 3, 9])] == [1, 1]
dfx.set_step(3)
maker.generate_samples(None)
"""
    seen = LIGHTRFT.on_copy(job, tmp_path)
    settings = {"batch_ratio": [0.7], "budget_tokens": [4.0]}
    assert of_the_partial_rollout(seen, 1) == settings | {
        "budget_hits": [3.0], "budget_hit_ratio": [0.6], "resumed": [1.0],
        "regenerated_tokens": [3.0], "regen/samples": [2.0], "noregen/samples": [1.0],
        "regen/taken_age/mean": [0.0], "regen/taken_age/max": [0.0],
        "noregen/taken_age/mean": [0.0], "noregen/taken_age/max": [0.0],
        "regen/waiting_age/mean": [0.0], "regen/waiting_age/max": [0.0],
        "noregen/waiting_age/mean": [0.0], "noregen/waiting_age/max": [0.0],
    }  # fmt: skip
    assert of_the_partial_rollout(seen, 3) == settings | {
        "budget_hits": [0.0], "resumed": [1.0], "regenerated_tokens": [3.0],
        "regen/samples": [1.0], "noregen/samples": [0.0],
        "regen/taken_age/mean": [2.0], "regen/taken_age/max": [2.0],
        "noregen/taken_age/mean": [2.0], "noregen/taken_age/max": [2.0],
        "regen/waiting_age/mean": [2.0], "regen/waiting_age/max": [2.0],
    }  # fmt: skip
    assert seen.names("stage") == ["rollout", "rollout"]
    assert seen.parts()["partial"] == 1.0
    assert seen.num_errors == 0


def test_an_output_that_continues_later_is_not_truncated(tmp_path, dfx_dir):
    job = f"""{PARTIAL}
dfx.set_step(1)
maker.generate_samples([9, 2])
strategy.gather_and_generate({{"max_new_tokens": 4}}, [4, 4])
StrategyBase().gather_and_generate({{"max_new_tokens": 4}}, [4, 2])
"""
    seen = LIGHTRFT.on_copy(job, tmp_path)
    assert seen.scalars()["rollout_truncated_ratio", 1] == [0.5]


def test_buffers_that_somebody_else_empties_have_no_age(tmp_path, dfx_dir):
    job = f"""{PARTIAL}
maker.generate_samples([9, 9, 2, 2])
dfx.set_step(5)
maker.regen_buffer["output"].clear()
maker.noregen_buffer["output"].append(maker.noregen_buffer["output"][0])
maker.generate_samples([2])
"""
    seen = LIGHTRFT.on_copy(job, tmp_path)
    reported = of_the_partial_rollout(seen, 5)
    assert reported["regen/samples"] == [0.0]
    assert reported["noregen/samples"] == [2.0]
    assert not any("age" in name for name in reported)
    assert seen.num_errors == 0


def test_values_of_a_partial_rollout_have_series(tmp_path, dfx_dir):
    seen = LIGHTRFT.on_copy(
        f"{PARTIAL}\ndfx.set_step(1)\nmaker.generate_samples([9, 2, 9, 2])", tmp_path
    )
    names = {name for name, _ in seen.scalars()}
    assert len(names) > 10
    assert [name for name in names if load("lightrft").find(name) is None] == []
