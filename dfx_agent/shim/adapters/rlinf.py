"""RLinf (0.3): a runner (driver) that logs, and workers in Ray actors with their own timer.

Source: rlinf 0.3.0 and RLinf/RLinf a3816b5. The runner logs 3 to 6 dicts per step; the one with
"time/step" ends the step. Workers of embodied runs know the step. Actors of reasoning runs do not,
so their trainings are counted, starting at the checkpoint from which they resumed.

The shape ledger inspects what an actor has before advantages, and what it trains: all mini-batches
of a step together. In reasoning, samples have no id, so their tokens serve as one. In embodied
runs, a row is one step of one environment; log-probabilities (as wide as the model's tokens) and
observations are ignored.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, _around
from dfx_agent.shim.adapters._around import StageOnce, wrap
from dfx_agent.shim.ledger import observe
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder

# tags of the runner's and of the workers' timers; other tags are not recorded
_STAGES = {
    "generate_rollouts": "rollout",
    "generate_one_epoch": "rollout",
    "rollout/generate": "rollout",
    "rollout": "rollout",
    "predict": "rollout",
    "interact": "rollout",
    "run_interact_once": "rollout",
    "env_interact_step": "rollout",
    "reward": "reward",
    "compute_rewards": "reward",
    "compute_image_rewards": "reward",
    "compute_bootstrap_rewards": "reward",
    "cal_adv_and_returns": "advantage",
    "actor/compute_adv": "advantage",
    "inference": "old_logprob",
    "actor_training": "actor_update",
    "run_training": "actor_update",
    "update_one_epoch": "actor_update",
    "sync_weights": "weight_sync",
    "update_rollout_weights": "weight_sync",
    "actor/sync_model_to_rollout": "weight_sync",
    "eval": "validation",
    "evaluate": "validation",
    "run_eval": "validation",
}
_LANGUAGE = (
    "response_mask", "is_end", "prompt_lengths", "response_lengths", "rewards", "advantages",
    "returns", "values", "rollout_logprobs", "recomputed_logprobs", "ref_logprobs",
)  # fmt: skip
_EMBODIED = ("loss_mask", "rewards", "advantages", "returns", "prev_values", "dones")
_ONE_MORE = frozenset({"prev_values", "dones"})  # columns with a row after the last step
_MASKED = frozenset({"rewards", "advantages", "returns"})
_SAVED_STEP = re.compile(r"global_step_(\d+)")


def _patch_logger(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "MetricLogger.log", _around.funnel(_read_log))


def _read_log(
    writer: Recorder,
    _logger: Any,
    data: Any,
    step: Any,
    backend: Any = None,  # noqa: ARG001 (may be given by name)
    worker_group_name: str | None = None,
    rank: int | None = None,
    **_: Any,
) -> None:
    """Reports about one worker are ignored: that worker's own guest measures it."""
    if worker_group_name is None or rank is None:
        _around.report(writer, data, step, ends_step="time/step" in data)


def _patch_runner_timer(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "ScopedTimer.__call__", _runner_timer)


def _runner_timer(original: Any, switch: Switch) -> Any:
    def run(timer: Any, *args: Any, **kwargs: Any) -> Any:
        inner = original(timer, *args, **kwargs)
        name = args[0] if args else kwargs.get("name")
        if not switch.is_on or name not in _STAGES:
            return inner
        switch.mark_used()
        return _timed(inner, name)

    return run


def _patch_worker(patches: PatchSet, module: ModuleType) -> None:
    import inspect  # noqa: PLC0415 (10 ms; RLinf has loaded it)

    timer = getattr(getattr(module, "Worker", None), "worker_timer", None)
    if timer is not None and "tag" in inspect.signature(timer).parameters:
        wrap(patches, module, "Worker.worker_timer", _worker_timer)


def _worker_timer(original: Any, switch: Switch) -> Any:
    def run(worker: Any, *args: Any, **kwargs: Any) -> Any:
        tag = args[0] if args else kwargs.get("tag")
        if tag is None:  # the original reads its caller from the stack, which is now this one
            tag = sys._getframe(1).f_code.co_name  # noqa: SLF001
            args, kwargs = (tag, *args[1:]), {k: v for k, v in kwargs.items() if k != "tag"}
        inner = original(worker, *args, **kwargs)
        if not switch.is_on:
            return inner
        switch.mark_used()
        _around.call_reader(_claim_role, worker)
        return _timed(inner, tag) if tag in _STAGES else inner

    return run


@contextmanager
def _timed(inner: AbstractContextManager[Any], tag: str) -> Iterator[Any]:
    with StageOnce(_STAGES[tag]), inner as value:
        yield value


def _claim_role(writer: Recorder, worker: Any) -> None:
    """Group names are chosen by the job ("ActorGroup", "RolloutGroup"); the first one counts."""
    group = str(getattr(worker, "_group_name", "") or "")
    _around.claim(writer, group.removesuffix("Group").lower())


def _patch_actor(patches: PatchSet, module: ModuleType) -> None:
    """Patch the reasoning actors (FSDP, Megatron: actor or critic) and the embodied actor."""
    for owner in ("FSDPActor", "MegatronWorker"):
        wrap(patches, module, f"{owner}.load_checkpoint", _around.before(_read_resumed))
        wrap(patches, module, f"{owner}.run_training", _around.before(_read_training))
        advantages = _around.before(_read_language("advantage"))
        wrap(patches, module, f"{owner}.compute_advantages_and_returns", advantages)
        trained = _around.before(_read_language("_update"))
        wrap(patches, module, f"{owner}.training_step", trained)
    embodied = "EmbodiedFSDPActor"
    wrap(patches, module, f"{embodied}.set_global_step", _around.before(_read_step))
    advantages = _around.before(_read_rollouts)
    wrap(patches, module, f"{embodied}.compute_advantages_and_returns", advantages)
    wrap(patches, module, f"{embodied}.train_micro_batch", _around.before(_read_micro_batch))


def _patch_rollout(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "MultiStepRolloutWorker.set_global_step", _around.before(_read_step))


def _read_step(writer: Recorder, _worker: Any, global_step: Any) -> None:
    _around.begin_step(writer, global_step)


def _read_resumed(writer: Recorder, _worker: Any, load_path: Any, *_: Any, **__: Any) -> None:
    found = _SAVED_STEP.findall(str(load_path))
    if found:
        _around.begin_step(writer, int(found[-1]))


def _read_training(writer: Recorder, *_: Any, **__: Any) -> None:
    """Start the next step; before the first training no step is known."""
    step = writer.step if writer.has_explicit_steps else None
    _around.begin_step(writer, 1 if step is None else step + 1)


def _read_language(stage: str) -> _around.Read:
    def read(writer: Recorder, worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        if not isinstance(batch, Mapping) or batch["response_mask"].ndim != 2:
            return  # an iterator that Megatron's pipeline draws from, or all were filtered out
        columns = {name: batch[name] for name in _LANGUAGE if name in batch}
        columns["response_mask"] = batch["response_mask"][:, -worker.response_len :]
        name = getattr(worker, "role", "actor") + stage if stage.startswith("_") else stage
        observe(writer, name, columns, ids=batch["input_ids"])

    return read


def _read_rollouts(writer: Recorder, actor: Any) -> None:
    """Batches are [steps, environments, ...] and are flattened as the training does it."""
    batch = actor.rollout_batch
    columns = _embodied(batch)
    steps = {name: value[:-1] if name in _ONE_MORE else value for name, value in columns.items()}
    observe(writer, "advantage", {name: value.flatten(0, 1) for name, value in steps.items()})


def _read_micro_batch(writer: Recorder, _actor: Any, micro_batch: Any, *_: Any, **__: Any) -> None:
    observe(writer, "actor_update", _embodied(micro_batch))


def _embodied(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Drop a mask per chunk of actions, which does not fit the columns per action."""
    columns = {name: batch[name] for name in _EMBODIED if batch.get(name) is not None}
    mask = columns.get("loss_mask")
    if mask is not None and any(columns[name].shape != mask.shape for name in _MASKED & {*columns}):
        del columns["loss_mask"]
    return columns


PARTS: Parts = {
    "logger": ("rlinf.utils.metric_logger", _patch_logger),
    "runner_timer": ("rlinf.utils.distributed", _patch_runner_timer),
    "worker": ("rlinf.scheduler.worker.worker", _patch_worker),
    "fsdp_actor": ("rlinf.workers.actor.fsdp_actor_worker", _patch_actor),
    "megatron_worker": ("rlinf.workers.megatron_worker", _patch_actor),
    "rollout": ("rlinf.workers.rollout.hf.huggingface_worker", _patch_rollout),
}
