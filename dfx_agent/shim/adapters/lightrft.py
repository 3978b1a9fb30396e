"""LightRFT: plain torchrun, one process per rank that both generates and trains.

Source: opendilab/LightRFT 49e62cb. Every rank calls its report function with its own numbers, so
rewards are per rank. The trackers below it only see rank 0.

The shape ledger inspects a rank's experiences before advantages, as one batch, and each micro-batch
that is trained. It sums the columns where the tensors are. Packed samples have no mask and a
different number of rows in each column, so they are ignored.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, Patch, _around, _partial_rollout
from dfx_agent.shim.adapters._around import Offload, Onload, span, wrap
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder

# columns of an Experience; the rest of ``info`` is logged by the job, where NaN is not a fault
_COLUMNS = (
    "sequences", "attention_mask", "action_mask", "action_log_probs", "base_action_log_probs",
    "values", "returns", "advantages", "kl", "action_entropy", "info.reward",
)  # fmt: skip


def _patch_trainer(owner: str) -> Patch:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        logs = f"{owner}.save_logs_and_checkpoints"
        wrap(patches, module, logs, _around.funnel(_read_logs))
        wrap(patches, module, f"{owner}.training_step_critic", span("critic_update"))
        wrap(patches, module, f"{owner}.training_step", _around.before(_read_trained))
        wrap(patches, module, f"{owner}._save_checkpoint", span("checkpoint"))
        wrap(patches, module, f"{owner}.evaluate", span("validation"))

    return patch


def _read_logs(
    writer: Recorder,
    _trainer: Any,
    args: Any,  # noqa: ARG001 (may be given by name)
    global_step: Any,
    step_bar: Any = None,  # noqa: ARG001 (may be given by name)
    logs_dict: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    _around.report(writer, logs_dict, global_step, ends_step=True)


def _patch_spmd(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "SPMDPPOTrainerBase.ppo_train", span("actor_update", read=_read_step))


def _read_step(writer: Recorder, _trainer: Any, global_steps: Any = 0, *_: Any, **__: Any) -> None:
    _around.begin_step(writer, global_steps)


def _patch_maker(patches: PatchSet, module: ModuleType) -> None:
    maker = "FastExperienceMaker"
    wrap(patches, module, f"{maker}.generate_samples", span("rollout"))
    wrap(patches, module, f"{maker}._make_experience_list_by_model", span("old_logprob"))
    wrap(patches, module, f"{maker}._process_experiences", span("advantage"))
    advantages = span("advantage", read=_read_experiences)
    wrap(patches, module, f"{maker}._compute_advantages_and_returns", advantages)
    wrap(patches, module, "RewardComputationEngine.compute_rewards", span("reward"))


def _read_experiences(writer: Recorder, _maker: Any, experiences: Any, *_: Any, **__: Any) -> None:
    if all(getattr(sample, "action_mask", None) is not None for sample in experiences):
        _around.observe_parts(writer, "advantage", experiences, _COLUMNS)


def _read_trained(writer: Recorder, _trainer: Any, experience: Any, *_: Any, **__: Any) -> None:
    if experience.action_mask is not None:
        _around.observe_parts(writer, "actor_update", [experience], _COLUMNS)


def _read_outputs(
    writer: Recorder, outputs: Any, strategy: Any, sampling_params: Any = None, *_: Any, **__: Any
) -> None:
    """Report the share of this rank's outputs that reach the length limit; reads no tensors."""
    if _partial_rollout.is_under_budget(strategy):
        return
    limit = _limit(sampling_params)
    lengths = [len(output["output_token_ids"]) for output in outputs]
    if limit is not None and lengths:
        truncated = sum(length >= limit for length in lengths)
        _around.report(writer, {"rollout_truncated_ratio": truncated / len(lengths)}, writer.step)


def _limit(sampling_params: Any) -> int | None:
    """Limit from an object with ``max_tokens`` (vLLM) or a dict with "max_new_tokens" (SGLang)."""
    if isinstance(sampling_params, dict):
        return sampling_params.get("max_new_tokens")
    return getattr(sampling_params, "max_tokens", None)


def _patch_strategy(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "StrategyBase.gather_and_generate", _around.after(_read_outputs))
    wrap(patches, module, "StrategyBase.update_engine_weights", span("weight_sync"))
    wrap(patches, module, "StrategyBase.wakeup_inference_engine", span("offload", kind=Onload))
    wrap(
        patches, module, "StrategyBase.maybe_sleep_inference_engine", span("offload", kind=Offload)
    )


PARTS: Parts = {
    "trainer": ("lightrft.trainer.ppo_trainer", _patch_trainer("PPOTrainer")),
    "trainer_vl": ("lightrft.trainer.ppo_trainer_vl", _patch_trainer("PPOTrainerVL")),
    "spmd": ("lightrft.trainer.spmd_ppo_trainer", _patch_spmd),
    "experience": ("lightrft.trainer.fast_exp_maker", _patch_maker),
    "partial": ("lightrft.trainer.fast_exp_maker_partial", _partial_rollout.patch),
    "strategy": ("lightrft.strategy.strategy_base", _patch_strategy),
}
