"""ROLL: a pipeline driver with trackers and timers, and workers as Ray actors.

Source: alibaba/ROLL 8eb27cc. Subclasses of ``BaseTracker`` override ``log`` and strip a reducer tag
("actor/pg_loss@sum") inside, so the adapter strips it too. After a resume the pipeline logs its
complete history again, from a thread. Those reports contain "system/step" and retain their old
steps.

The shape ledger inspects the arguments of a worker's methods, at most 14 columns. A batch with
columns in another process is ignored, because reading it would fetch them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, _around
from dfx_agent.shim.adapters._around import Offload, Onload, StageOnce, span, wrap
from dfx_agent.shim.ledger import observe
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.spans import record_memory

# driver: names of ``codetiming.Timer`` in the RLVR, agentic and DPO pipelines
_TIMERS = {
    "step_stop_server": "rollout",
    "step_model_update": "weight_sync",
    "model_update": "weight_sync",
    "val_step": "validation",
    "val": "validation",
    "step_generate": "rollout",
    "rollout": "rollout",
    "shrink_sampler": "rollout",
    "cal_ref_log_probs": "ref_logprob",
    "cal_old_log_probs_values": "old_logprob",
    "reward_postprocess": "reward",
    "get_token_reward": "reward",
    "cal_response_norm_rewards": "reward",
    "cal_token_reward": "reward",
    "get_sample_level_mask": "advantage",
    "cal_response_level_mask": "advantage",
    "compute_advantage": "advantage",
    "step_train": "actor_update",
    "train_timer": "actor_update",
    "actor_train": "actor_update",
}
_ROLES = {"actor_train": "actor", "actor_infer": "rollout", "reference": "ref"}
# ``infer_logprobs`` has other widths in some pipelines
_COLUMNS = (
    "sample_uuid", "traj_id", "prompt_id", "traj_group_id", "response_mask", "attention_mask",
    "input_ids", "old_log_probs", "ref_log_probs", "advantages", "returns", "values",
    "token_level_rewards", "response_level_rewards",
)  # fmt: skip


def _patch_tracking(patches: PatchSet, module: ModuleType) -> None:
    base = getattr(module, "BaseTracker", ())
    for tracker in list(vars(module).values()):
        if isinstance(tracker, type) and issubclass(tracker, base) and "log" in vars(tracker):
            patches.replace(tracker, "log", _around.funnel(_read_log))
    # writes from its own thread, which does not inherit the quiet state
    wrap(patches, module, "TensorBoardTracker._write", _around.quiet())


def _read_log(writer: Recorder, _tracker: Any, values: Any, step: Any = None, **_: Any) -> None:
    if isinstance(values, Mapping):
        is_replayed = "system/step" in values
        untagged = {str(name).rsplit("@", 1)[0]: value for name, value in values.items()}
        _around.report(writer, untagged, step, ends_step=not is_replayed)


def _patch_timers(patches: PatchSet, module: ModuleType) -> None:
    """Patch ``start`` and ``stop``, which the timer's context manager calls too."""
    running: dict[int, StageOnce] = {}

    def begin(_writer: Recorder, _: None, timer: Any) -> None:
        stage = _TIMERS.get(timer.name)
        if stage is not None:
            running[id(timer)] = StageOnce(stage).__enter__()

    def end(_writer: Recorder, _seconds: float, timer: Any) -> None:
        stage = running.pop(id(timer), None)
        if stage is not None:
            stage.__exit__(None, None, None)

    wrap(patches, module, "Timer.start", _around.after(begin))
    wrap(patches, module, "Timer.stop", _around.after(end))


def _patch_worker(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "Worker.__init__", _around.after(_claim_role))
    wrap(patches, module, "Worker.start_model_update", span("weight_sync"))
    wrap(patches, module, "Worker.load_states", span("offload", kind=Onload))
    wrap(patches, module, "Worker.offload_states", span("offload", kind=Offload))


def _claim_role(writer: Recorder, _: None, worker: Any, *__: Any, **___: Any) -> None:
    cluster = worker.cluster_name or ""
    _around.claim(writer, _ROLES.get(cluster, cluster.split("-")[0]))


def _patch_models(patches: PatchSet, module: ModuleType) -> None:
    for path, stage in _WORK.items():
        wrap(patches, module, path, span(stage, read=_read_call(stage)))
    wrap(patches, module, "InferWorker.load_states", span("offload", kind=Onload))
    wrap(patches, module, "InferWorker.offload_states", span("offload", kind=Offload))


def _patch_states(patches: PatchSet, module: ModuleType) -> None:
    """The name is misspelt in ROLL. ROLL's own numbers (``ROLL_DEBUG``) are means over ranks."""
    wrap(patches, module, "state_offload_manger", _measured)


def _measured(original: Any, switch: Switch) -> Any:
    """Record the memory at its four points; a body that raises is not offloaded."""

    @contextmanager
    def run(*args: Any, **kwargs: Any) -> Iterator[Any]:
        if not switch.is_on:
            with original(*args, **kwargs) as given:
                yield given
            return
        switch.mark_used()
        record_memory("start/offload", "offload")
        with original(*args, **kwargs) as given:
            record_memory("start/onload", "offload")
            yield given
            record_memory("end/onload", "offload")
        record_memory("end/offload", "offload")

    return run


def _read_call(stage: _around.Name) -> _around.Read:
    def read(writer: Recorder, worker: Any, data: Any = None, *args: Any, **kwargs: Any) -> None:
        _read_step(writer, worker, data, *args, **kwargs)
        columns = _columns(data)
        if columns:
            name = stage if isinstance(stage, str) else stage(worker)
            observe(writer, str(name), columns)

    return read


def _columns(data: Any) -> dict[str, Any]:
    """Columns of a local DataProto; its ``batch`` would fetch other columns."""
    if not hasattr(data, "non_tensor_batch") or getattr(data, "_remote_batch", None) is not None:
        return {}
    tensors = data._batch if hasattr(data, "_batch") else data.batch  # noqa: SLF001
    sides = [side for side in (tensors, data.non_tensor_batch) if side is not None]
    return {name: side[name] for side in sides for name in _COLUMNS if name in side.keys()}  # noqa: SIM118


def _stage_of_log_probs(worker: Any, *_: Any, **__: Any) -> str:
    return "ref_logprob" if worker.cluster_name == "reference" else "old_logprob"


def _read_step(
    writer: Recorder, _worker: Any, data: Any = None, *_: Any, global_step: Any = None, **__: Any
) -> None:
    """The step is in the batch; a checkpoint is called with it."""
    meta = getattr(data, "meta_info", None)
    if isinstance(meta, dict):
        global_step = meta.get("global_step")
    _around.begin_step(writer, data if global_step is None else global_step)


_WORK: dict[str, _around.Name] = {
    "ActorWorker.train_step": "actor_update",
    "ActorWorker.compute_log_probs": _stage_of_log_probs,
    "ActorWorker.do_checkpoint": "checkpoint",
    "CriticWorker.train_step": "critic_update",
    "CriticWorker.compute_values": "values",
    "CriticWorker.do_checkpoint": "checkpoint",
    "RewardWorker.compute_rewards": "reward",
    "InferWorker.generate": "rollout",
}
PARTS: Parts = {
    "tracking": ("roll.utils.tracking", _patch_tracking),
    "timers": ("codetiming", _patch_timers),
    "states": ("roll.utils.context_managers", _patch_states),
    "worker": ("roll.distributed.executor.worker", _patch_worker),
    "models": ("roll.pipeline.base_worker", _patch_models),
}
