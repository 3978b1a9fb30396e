"""OpenRLHF (0.11): the trainer and the models are separate Ray actors.

Source: openrlhf 0.11.2 and OpenRLHF/OpenRLHF 3c3be62. ``PPOTrainer``, ``PolicyModelActor`` and the
other decorated actors are pickled by value; their base classes and plain members are not.

The shape ledger is recorded only in the trainer's process, where all samples are on the host,
because workers do not know the step. All micro-batches of a step are one batch.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, _around
from dfx_agent.shim.adapters._around import span, wrap
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder

# class of a model actor -> (role, stage of its ``forward``)
_MODELS = {
    "PolicyModelActor": ("actor", "old_logprob"),
    "CriticModelActor": ("critic", "values"),
    "ReferenceModelActor": ("ref", "ref_logprob"),
    "RewardModelActor": ("reward", "reward"),
}


# columns of an Experience; its ``info`` is logged by the job, where NaN is not a fault
_COLUMNS = (
    "index", "sequences", "attention_mask", "action_mask", "action_log_probs",
    "base_action_log_probs", "rollout_log_probs", "values", "returns", "advantages", "kl",
    "rewards", "scores", "response_length", "total_length",
)  # fmt: skip


def _patch_trainer(patches: PatchSet, module: ModuleType) -> None:
    logs = "BasePPOTrainer.save_logs_and_checkpoints"
    wrap(patches, module, logs, _around.funnel(_read_logs))
    wrap(patches, module, "BasePPOTrainer.ppo_train", span("actor_update"))
    wrap(patches, module, "BasePPOTrainer.broadcast_to_vllm", span("weight_sync"))
    wrap(patches, module, "BasePPOTrainer.save_best_checkpoint", span("checkpoint"))


def _read_logs(
    writer: Recorder, _trainer: Any, global_step: int, logs_dict: Any = None, *_: Any, **__: Any
) -> None:
    """Report the metrics at the end of each step, even without a tracker."""
    _around.report(writer, logs_dict, global_step, ends_step=True)


def _patch_loggers(patches: PatchSet, module: ModuleType) -> None:
    """Evaluation is passed to each logger directly; two loggers get the same dict."""
    last: list[tuple[Any, int]] = []

    def read(writer: Recorder, _logger: Any, global_step: int, logs_dict: Any) -> None:
        this = (global_step, id(logs_dict))
        if last != [this]:
            last[:] = [this]
            _around.report(writer, logs_dict, global_step)

    for name in ("WandbLogger", "TensorboardLogger"):
        wrap(patches, module, f"{name}.log_eval", _around.funnel(read))


def _patch_samples(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "SamplesGenerator.generate_samples", span("rollout"))
    wrap(patches, module, "SamplesGenerator.generate_eval_samples", span("validation"))


def _patch_experience(patches: PatchSet, module: ModuleType) -> None:
    """Reward, log-probabilities and values are one call that waits for all models."""
    maker = "RemoteExperienceMaker"
    advantages = f"{maker}.compute_advantages_and_returns"
    wrap(patches, module, f"{maker}.make_experience", span("reward", read=_read_samples))
    wrap(patches, module, advantages, span("advantage", read=_read_experiences))
    wrap(patches, module, f"{maker}.make_experience_batch", _around.after(_read_made))


def _read_samples(writer: Recorder, _maker: Any, samples_list: Any) -> None:
    _around.observe_parts(writer, "reward", samples_list, _COLUMNS)


def _read_experiences(writer: Recorder, _maker: Any, experiences: Any) -> None:
    _around.observe_parts(writer, "advantage", experiences, _COLUMNS)


def _read_made(writer: Recorder, experiences: Any, *_: Any, **__: Any) -> None:
    _around.observe_parts(writer, "actor_update", experiences, _COLUMNS)


def _patch_workers(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "BaseDistributedActor.__init__", _around.after(_claim_role))
    wrap(patches, module, "BaseModelActor.execute_batch", span(_stage_of_batch))


def _claim_role(
    writer: Recorder, _: None, actor: Any, world_size: int, rank: int, *__: Any, **___: Any
) -> None:
    role, _stage = _model_of(actor)
    _around.claim(writer, role, rank=rank, world_size=world_size)


def _stage_of_batch(actor: Any, method_name: str, *_: Any, **__: Any) -> str | None:
    _role, stage = _model_of(actor)
    return (stage or None) if method_name == "forward" else None


def _model_of(actor: Any) -> tuple[str, str]:
    """Return (role, stage) by the actor's class, or the base class of Ray's own class."""
    names = (cls.__name__ for cls in type(actor).__mro__)
    return next((_MODELS[name] for name in names if name in _MODELS), ("", ""))


def _patch_actor(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "ActorPPOTrainer.ppo_train", span("actor_update"))
    wrap(patches, module, "ActorPPOTrainer.broadcast_to_vllm", span("weight_sync"))


def _patch_critic(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "CriticPPOTrainer.ppo_train", span("critic_update"))


PARTS: Parts = {
    "trainer": ("openrlhf.trainer.ppo_trainer", _patch_trainer),
    "loggers": ("openrlhf.utils.logging_utils", _patch_loggers),
    "rollout": ("openrlhf.trainer.ppo_utils.samples_generator", _patch_samples),
    "experience": ("openrlhf.trainer.ppo_utils.experience_maker", _patch_experience),
    "workers": ("openrlhf.trainer.ray.launcher", _patch_workers),
    "actor": ("openrlhf.trainer.ray.ppo_actor", _patch_actor),
    "critic": ("openrlhf.trainer.ray.ppo_critic", _patch_critic),
}
