"""ms-swift and Unsloth: trainers with TRL's function names, which TRL's adapter does not see."""

from __future__ import annotations

import pytest
from shapes import Shapes

TRAINER = """
    from types import SimpleNamespace
    class Trainer:
        def __init__(self):
            self.model = SimpleNamespace(training=True)
            self.ref_model = object()
"""
# call shapes of modelscope/ms-swift 3602360
MS_SWIFT = Shapes(
    variable="DFX_TEST_MS_SWIFT",
    sources={
        "swift/__init__.py": "__version__ = '4.6.0.dev0'",
        "swift/rlhf_trainers/__init__.py": "",
        "swift/rlhf_trainers/base.py": TRAINER,
        # swift/rlhf_trainers/rollout_mixin.py:123, 643, 1162
        "swift/rlhf_trainers/rollout_mixin.py": """
            class RolloutTrainerMixin:
                def _generate_and_score_completions(self, inputs):
                    samples = self._generate_completions(inputs)
                    self._compute_rewards_per_func(samples)
                    self._get_per_token_logps_and_entropies(self.model, {}, None)
                    self._get_per_token_logps_and_entropies(self.ref_model, {}, None)
                    return samples
                def _generate_completions(self, samples):
                    self._move_model_to_vllm()
                    return samples
                def _move_model_to_vllm(self, skip_async_check=False):
                    pass
        """,
        # swift/rlhf_trainers/grpo_trainer.py:90, 349, 1601
        "swift/rlhf_trainers/grpo_trainer.py": """
            from swift.rlhf_trainers.base import Trainer
            from swift.rlhf_trainers.rollout_mixin import RolloutTrainerMixin
            class GRPOTrainer(RolloutTrainerMixin, Trainer):
                def _compute_rewards_per_func(self, samples):
                    return [0.0]
                def _get_per_token_logps_and_entropies(
                    self, model, model_inputs, grpo_batch, compute_entropy=False, origin_data=None
                ):
                    return None, None
        """,
    },
)
# call shapes of unslothai/unsloth 015bdef: unsloth/models/rl.py:3812-3838
UNSLOTH = Shapes(
    variable="DFX_TEST_UNSLOTH",
    sources={
        "trl/__init__.py": "",
        "trl/trainer/__init__.py": "",
        "trl/trainer/base.py": TRAINER,
        "trl/trainer/grpo_trainer.py": """
            from trl.trainer.base import Trainer
            class GRPOTrainer(Trainer):
                def _generate(self, prompts):
                    return [[1]], [[2, 3]]
        """,
        "unsloth/__init__.py": """
            import math
            from types import SimpleNamespace
            import torch
            import trl.trainer.grpo_trainer as module
            class _UnslothGRPOTrainer(module.Trainer):
                accelerator = SimpleNamespace(process_index=1)
                reward_weights = torch.tensor([1.0, 0.5])
                def _generate_and_score_completions(self, inputs):
                    self._generate(inputs)
                    self._calculate_rewards(inputs, ["a", "b"], ["c", "d"], [[1, 2], [3, 4, 5, 6]])
                    return {}
                def _generate(self, prompts):
                    return [[1]], [[2, 3]]
                def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
                    nan = math.nan  # of all processes: the second has [0.2, 0.4] and no reward
                    return torch.tensor([[9.0, 9.0], [9.0, 9.0], [0.2, 0.4], [nan, nan]])
            class UnslothGRPOTrainer(_UnslothGRPOTrainer):
                pass
            module.GRPOTrainer = UnslothGRPOTrainer
        """,
    },
)


def test_ms_swift_s_own_sampling_is_seen(tmp_path, dfx_dir):
    job = """
import torch
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
trainer = GRPOTrainer()
with torch.no_grad():
    assert trainer._generate_and_score_completions([1]) == [1]
trainer.model.training = False  # an evaluation is one stage, TRL's
trainer._generate_and_score_completions([1])
"""
    seen = MS_SWIFT.on_copy(job, tmp_path)
    assert seen.names("stage") == [
        "weight_sync", "rollout", "reward", "old_logprob", "ref_logprob", "advantage",
        "weight_sync",
    ]  # fmt: skip
    assert seen.identity["framework"] == "ms_swift"
    assert seen.num_errors == 0


def test_another_package_of_the_name_swift_is_left_alone(tmp_path, dfx_dir):
    other = {"swift/__init__.py": "", "swift/common.py": "GRPOTrainer = 1"}
    job = "import swift.common, dfx_agent.shim as dfx\ndfx.set_step(1)"
    seen = Shapes("", other).on_copy(job, tmp_path)
    assert seen.identity["framework"] == ""
    assert seen.parts("swift") == {}


def test_unsloth_s_generated_trainer_is_seen(tmp_path, dfx_dir):
    job = """
import unsloth
from trl.trainer.grpo_trainer import GRPOTrainer
assert GRPOTrainer.__name__ == "UnslothGRPOTrainer"
samples = [{"prompt": "a", "data_source": "math"}, {"prompt": "b", "data_source": "code"}]
assert GRPOTrainer()._generate_and_score_completions(samples) == {}
"""
    seen = UNSLOTH.on_copy(job, tmp_path)
    counts = {r.name: r.value for r in seen.records if r.kind == "count"}
    # 1.0 x 0.2 + 0.5 x 0.4; the sample that no function judges has no score
    assert counts["scores/reward/0.4/math"] == 1
    assert counts["scores/reward/sum/math"] == pytest.approx(0.4)
    assert not [name for name in counts if name.endswith("code")]
    lengths = [r.value for r in seen.records if r.name == "pipeline/response_length/p50"]
    assert lengths == [3.0]
    assert seen.names("stage") == ["rollout", "reward", "advantage"]
    tokens = [(r.name, r.value) for r in seen.records if r.kind == "tokens"]
    assert tokens == [("prompt", 1.0), ("response", 2.0)]
    assert seen.identity["framework"] == "unsloth"
    assert seen.num_errors == 0


def test_unsloth_without_a_generated_trainer_changes_nothing(tmp_path, dfx_dir):
    job = "import unsloth, dfx_agent.shim as dfx\ndfx.set_step(1)"
    seen = Shapes("", {"unsloth/__init__.py": ""}).on_copy(job, tmp_path)
    assert seen.parts("unsloth") == {"grpo": 0.0, "rloo": 0.0}
    assert seen.num_errors == 0
