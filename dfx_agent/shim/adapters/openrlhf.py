"""OpenRLHF (0.11): trainer in a Ray actor, models in Ray actors of their own.

Source: openrlhf 0.11.2 and OpenRLHF/OpenRLHF 3c3be62. ``PPOTrainer``, ``PolicyModelActor`` and the
other decorated actors are pickled by value; their base classes and plain members are not.

The shape ledger is recorded in the trainer's process only, where all samples are on the host:
workers are not told the step. All micro-batches of a step are one crossing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import _around
from dfx_agent.shim.adapters._around import put, span
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder

# of the actors that run a model: role, and stage of their ``forward``
_MODELS = {
    "PolicyModelActor": ("actor", "old_logprob"),
    "CriticModelActor": ("critic", "values"),
    "ReferenceModelActor": ("ref", "ref_logprob"),
    "RewardModelActor": ("reward", "reward"),
}


# of an Experience; its ``info`` holds what the job logs, where NaN is no fault
_COLUMNS = (
    "index", "sequences", "attention_mask", "action_mask", "action_log_probs",
    "base_action_log_probs", "rollout_log_probs", "values", "returns", "advantages", "kl",
    "rewards", "scores", "response_length", "total_length",
)  # fmt: skip


def _patch_trainer(patches: PatchSet, module: ModuleType) -> None:
    logs = "BasePPOTrainer.save_logs_and_checkpoints"
    put(patches, module, logs, _around.funnel(_read_logs))
    put(patches, module, "BasePPOTrainer.ppo_train", span("actor_update"))
    put(patches, module, "BasePPOTrainer.broadcast_to_vllm", span("weight_sync"))
    put(patches, module, "BasePPOTrainer.save_best_checkpoint", span("checkpoint"))


def _read_logs(
    writer: Recorder, _trainer: Any, global_step: int, logs_dict: Any = None, *_: Any, **__: Any
) -> None:
    """Called once per step at its end, also when no tracker is configured."""
    _around.report(writer, logs_dict, global_step, ends_step=True)


def _patch_loggers(patches: PatchSet, module: ModuleType) -> None:
    """Evaluation goes to each logger directly; two of them get one and the same dict."""
    last: list[tuple[Any, int]] = []

    def read(writer: Recorder, _logger: Any, global_step: int, logs_dict: Any) -> None:
        this = (global_step, id(logs_dict))
        if last != [this]:
            last[:] = [this]
            _around.report(writer, logs_dict, global_step)

    for name in ("WandbLogger", "TensorboardLogger"):
        put(patches, module, f"{name}.log_eval", _around.funnel(read))


def _patch_samples(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "SamplesGenerator.generate_samples", span("rollout"))
    put(patches, module, "SamplesGenerator.generate_eval_samples", span("validation"))


def _patch_experience(patches: PatchSet, module: ModuleType) -> None:
    """Reward, log-probabilities and values in one call that waits for all models."""
    maker = "RemoteExperienceMaker"
    advantages = f"{maker}.compute_advantages_and_returns"
    put(patches, module, f"{maker}.make_experience", span("reward", read=_read_samples))
    put(patches, module, advantages, span("advantage", read=_read_experiences))
    put(patches, module, f"{maker}.make_experience_batch", _around.after(_read_made))


def _read_samples(writer: Recorder, _maker: Any, samples_list: Any) -> None:
    _around.crossing(writer, "reward", samples_list, _COLUMNS)


def _read_experiences(writer: Recorder, _maker: Any, experiences: Any) -> None:
    _around.crossing(writer, "advantage", experiences, _COLUMNS)


def _read_made(writer: Recorder, experiences: Any, *_: Any, **__: Any) -> None:
    _around.crossing(writer, "actor_update", experiences, _COLUMNS)


def _patch_workers(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "BaseDistributedActor.__init__", _around.after(_claim_role))
    put(patches, module, "BaseModelActor.execute_batch", span(_stage_of_batch))


def _claim_role(
    writer: Recorder, _: None, actor: Any, world_size: int, rank: int, *__: Any, **___: Any
) -> None:
    role, _stage = _model_of(actor)
    _around.claim(writer, role, rank=rank, world_size=world_size)


def _stage_of_batch(actor: Any, method_name: str, *_: Any, **__: Any) -> str | None:
    _role, stage = _model_of(actor)
    return (stage or None) if method_name == "forward" else None


def _model_of(actor: Any) -> tuple[str, str]:
    """By the class, or the one that Ray derives its own from."""
    names = (cls.__name__ for cls in type(actor).__mro__)
    return next((_MODELS[name] for name in names if name in _MODELS), ("", ""))


def _patch_actor(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "ActorPPOTrainer.ppo_train", span("actor_update"))
    put(patches, module, "ActorPPOTrainer.broadcast_to_vllm", span("weight_sync"))


def _patch_critic(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "CriticPPOTrainer.ppo_train", span("critic_update"))


PARTS: dict[str, tuple[str, Callable[[PatchSet, ModuleType], None]]] = {
    "trainer": ("openrlhf.trainer.ppo_trainer", _patch_trainer),
    "loggers": ("openrlhf.utils.logging_utils", _patch_loggers),
    "rollout": ("openrlhf.trainer.ppo_utils.samples_generator", _patch_samples),
    "experience": ("openrlhf.trainer.ppo_utils.experience_maker", _patch_experience),
    "workers": ("openrlhf.trainer.ray.launcher", _patch_workers),
    "actor": ("openrlhf.trainer.ray.ppo_actor", _patch_actor),
    "critic": ("openrlhf.trainer.ray.ppo_critic", _patch_critic),
}
