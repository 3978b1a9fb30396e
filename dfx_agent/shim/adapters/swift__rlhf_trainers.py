"""ms-swift: its GRPO trainer derives from TRL's and overrides the functions of the sampling.

Source: modelscope/ms-swift 3602360 (4.6.0.dev0). Metrics, steps and the update are TRL's parts. The
top module "swift" is also the name of another package, so the adapter waits for this one.
"""

from __future__ import annotations

from types import ModuleType

from dfx_agent.shim.adapters import Parts, _around
from dfx_agent.shim.adapters._around import wrap
from dfx_agent.shim.adapters.trl import in_training, log_prob_stage
from dfx_agent.shim.patches import PatchSet

FRAMEWORK = "ms_swift"


def _patch_rollout(patches: PatchSet, module: ModuleType) -> None:
    mixin = "RolloutTrainerMixin"
    wrap(patches, module, f"{mixin}._generate_and_score_completions", in_training("advantage"))
    wrap(patches, module, f"{mixin}._generate_completions", in_training("rollout"))
    wrap(patches, module, f"{mixin}._move_model_to_vllm", _around.span("weight_sync"))


def _patch_grpo(patches: PatchSet, module: ModuleType) -> None:
    trainer = "GRPOTrainer"
    wrap(patches, module, f"{trainer}._compute_rewards_per_func", in_training("reward"))
    log_probs = _around.span(log_prob_stage)
    wrap(patches, module, f"{trainer}._get_per_token_logps_and_entropies", log_probs)


PARTS: Parts = {
    "rollout": ("swift.rlhf_trainers.rollout_mixin", _patch_rollout),
    "grpo": ("swift.rlhf_trainers.grpo_trainer", _patch_grpo),
}
