"""TRL 0.14 to 1.x: trainers based on ``transformers.Trainer``, mainly GRPO and RLOO.

Every rank reports, because ``Trainer.log`` is called on all of them. A step is
``state.global_step`` + 1 while its micro-batches run, and its report has the same number. Methods
are patched on the classes that define them, so that an attach also covers running trainers.

``actor_update`` is the part of ``training_step`` after its inputs are ready (forward, backward),
and the update itself. Generation, rewards and log-probs happen in ``training_step`` before that.
"""

from __future__ import annotations

import math
import sys
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import dfx_agent.shim as dfx
from dfx_agent.shim import recorder, sample_statistics
from dfx_agent.shim.adapters import _around
from dfx_agent.shim.adapters.transformers import begin_step, read_log
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.span_writer import OpenSpan
from dfx_agent.shim.torch import step_hooks

KIND = "library"

# 0.23 and newer, and before
_LOG_PROBS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")


class _MicroBatch:
    """One running ``training_step``."""

    __slots__ = ("update",)

    def __init__(self) -> None:
        self.update: OpenSpan | None = None


_micro_batch: ContextVar[_MicroBatch | None] = ContextVar("dfx_trl_micro_batch", default=None)


def _patch_log(patches: PatchSet, module: ModuleType) -> None:
    patches.replace(module.Trainer, "log", _around.funnel(read_log))


def _patch_steps(patches: PatchSet, module: ModuleType) -> None:
    patches.replace(module.Trainer, "training_step", _step_wrapper)
    patches.replace(module.Trainer, "compute_loss_context_manager", _around.before(_begin_update))


def _step_wrapper(original: Any, switch: Switch) -> Any:
    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not switch.is_on:
            return original(self, *args, **kwargs)
        switch.mark_used()
        _around.call_reader(begin_step, self)
        micro_batch = _MicroBatch()
        token = _micro_batch.set(micro_batch)
        failure: type[BaseException] | None = None
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            failure = type(error)
            raise
        finally:
            _micro_batch.reset(token)
            _end_update(micro_batch, failure)

    return training_step


def _begin_update(_writer: Recorder, *_: Any) -> None:
    """The loss is computed next, so the inputs are ready."""
    micro_batch = _micro_batch.get()
    if micro_batch is not None and micro_batch.update is None:
        micro_batch.update = step_hooks.open_stage("actor_update")


def _end_update(micro_batch: _MicroBatch, failure: type[BaseException] | None) -> None:
    try:
        step_hooks.close_stage(micro_batch.update, failure)
    except Exception:  # noqa: BLE001 (never into the job)
        if recorder.current is not None:
            recorder.current.count_error()


def _patch_update(patches: PatchSet, module: ModuleType) -> None:
    """Gradient clipping and the optimizer step, after the last micro-batch."""
    patches.replace(module.AcceleratedOptimizer, "step", _around.span("actor_update"))
    accelerator = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", None)
    if accelerator is not None:
        patches.replace(accelerator, "clip_grad_norm_", _around.span("actor_update"))


def _patch_evaluation(patches: PatchSet, module: ModuleType) -> None:
    patches.replace(module.Trainer, "evaluate", _around.span("validation"))


def _patch_checkpoint(patches: PatchSet, module: ModuleType) -> None:
    patches.replace(module.Trainer, "_save_checkpoint", _around.span("checkpoint"))


def patch_sampling(patches: PatchSet, trainer: Any) -> None:
    """Patch the sampling of a trainer class; in evaluation all of it is one stage."""
    rest = "advantage"
    if hasattr(trainer, "_generate"):
        patches.replace(trainer, "_generate", _around.after(_count_tokens))
        patches.replace(trainer, "_generate", in_training("rollout"))
    else:  # before 0.24 generation was part of the surrounding function
        rest = "rollout"
    patches.replace(trainer, "_generate_and_score_completions", in_training(rest))
    patches.replace(trainer, "_generate_and_score_completions", _around.after(_read_batch))
    patches.replace(trainer, "_calculate_rewards", _around.after(_read_rewards))
    patches.replace(trainer, "_calculate_rewards", in_training("reward"))
    patches.replace(trainer, "_move_model_to_vllm", _around.span("weight_sync"))
    for method in _LOG_PROBS:
        patches.replace(trainer, method, _around.before(_read_micro_batch))
        patches.replace(trainer, method, _around.span(log_prob_stage))


def _patch_grpo(patches: PatchSet, module: ModuleType) -> None:
    patch_sampling(patches, module.GRPOTrainer)


def _patch_rloo(patches: PatchSet, module: ModuleType) -> None:
    patch_sampling(patches, module.RLOOTrainer)


def _patch_async_grpo(patches: PatchSet, module: ModuleType) -> None:
    patches.replace(module.AsyncGRPOTrainer, "_sync_weight", _around.span("weight_sync"))


def _patch_vllm(patches: PatchSet, module: ModuleType) -> None:
    patches.replace(module.VLLMGeneration, "sync_weights", _around.span("weight_sync"))


def _patch_profiling(patches: PatchSet, module: ModuleType) -> None:
    """Stop trackers on rank 0 from recording its times: the stages above contain them."""
    patches.replace(module.ProfilingContext, "_log_metrics", _around.quiet())


def in_training(stage: str) -> _around.Make:
    """Make each call a stage, unless the trainer evaluates."""
    return _around.span(lambda trainer, *_, **__: stage if trainer.model.training else None)


def log_prob_stage(trainer: Any, model: Any, *_: Any, **__: Any) -> str | None:
    """Stage of a log-prob call, by model; with gradients it is the policy's own forward."""
    if sys.modules["torch"].is_grad_enabled() or not trainer.model.training:
        return None
    is_reference = model is getattr(trainer, "ref_model", None) or _has_reference_adapter(model)
    return "ref_logprob" if is_reference else "old_logprob"


def _read_micro_batch(
    writer: Recorder,
    trainer: Any,
    model: Any,
    input_ids: Any,
    _attention_mask: Any,
    _logits_to_keep: Any,
    batch_size: int | None = None,
    *_: Any,
    **__: Any,
) -> None:
    """Report the tokens, padding included, of each pass that a log-prob call is divided into."""
    stage = log_prob_stage(trainer, model)
    if stage is not None:
        num_rows, length = input_ids.shape
        num_tokens = float(min(batch_size or num_rows, num_rows) * length)
        writer.scalars({f"pipeline/micro_batch_tokens/{stage}": num_tokens}, writer.step_now())


def _has_reference_adapter(model: Any) -> bool:
    """With PEFT the reference is the model without its adapter, or with an adapter "ref"."""
    if not hasattr(model, "peft_config"):
        return False
    layers = (m for m in model.modules() if hasattr(m, "_disable_adapters"))
    layer = next(layers, None)
    return getattr(layer, "_disable_adapters", False) or model.active_adapter == "ref"


def _read_batch(_writer: Recorder, batch: Any, trainer: Any, *_: Any, **__: Any) -> None:
    """Inspect the complete batch; later its rows are shuffled and split, and have no ids."""
    if trainer.model.training:
        dfx.ledger("rollout", batch)


def _read_rewards(
    writer: Recorder,
    rewards: Any,
    trainer: Any,
    samples: Any,
    prompts: Any,
    _completions: Any,
    completion_ids: Any,
    *_: Any,
    **__: Any,
) -> None:
    """Record the score of each sample of this process: its rewards (all, F) times their weights.

    The reward of a function that does not judge the sample is NaN; a sample that no function judges
    has no score. Arguments are those of TRL 0.20 and newer.
    """
    if not trainer.model.training:
        return
    step, sources = writer.step_now(), sample_statistics.sources_of(samples)
    lengths = [len(ids) for ids in completion_ids]
    first = trainer.accelerator.process_index * len(prompts)
    own = rewards[first : first + len(prompts)] * trainer.reward_weights.to(rewards.device)

    def write(host: Any) -> None:
        rows = [[term for term in row if not math.isnan(term)] for row in host.tolist()]
        scores = [math.fsum(row) if row else math.nan for row in rows]
        sample_statistics.record_samples(writer, "reward", step, scores, sources, lengths)

    if own.is_cpu:
        writer.at_step_end(lambda: write(own))
    else:
        writer.fetch(own, write)


def _count_tokens(writer: Recorder, result: Any, trainer: Any, *_: Any, **__: Any) -> None:
    """Count this rank's tokens; results that are not lists of token lists are ignored."""
    if trainer.model.training and isinstance(result, tuple):
        for kind, sequences in zip(("prompt", "response"), result, strict=False):
            if isinstance(sequences, list) and all(isinstance(ids, list) for ids in sequences):
                writer.tokens(kind, sum(map(len, sequences)))


PARTS = {
    "log": ("transformers.trainer", _patch_log),
    "steps": ("transformers.trainer", _patch_steps),
    "evaluation": ("transformers.trainer", _patch_evaluation),
    "checkpoint": ("transformers.trainer", _patch_checkpoint),
    "update": ("accelerate.optimizer", _patch_update),
    "grpo": ("trl.trainer.grpo_trainer", _patch_grpo),
    "rloo": ("trl.trainer.rloo_trainer", _patch_rloo),
    "async_grpo": ("trl.experimental.async_grpo.async_grpo_trainer", _patch_async_grpo),
    "vllm": ("trl.generation.vllm_generation", _patch_vllm),
    "profiling": ("trl.extras.profiling", _patch_profiling),
}
