"""RLinf (0.3): a runner (driver) that logs, workers in Ray actors with a timer of their own.

Source: rlinf 0.3.0 and RLinf/RLinf a3816b5. The runner sends 3 to 6 dicts per step; the one with
"time/step" closes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import _around
from dfx_agent.shim.adapters._around import StageOnce, put
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder

# tags of the runner's and of the workers' timers; other tags are no stage of ours
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


def _patch_logger(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "MetricLogger.log", _around.funnel(_read_log))


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
    """Reports about one worker are passed over: that worker's own guest measures it."""
    if worker_group_name is None or rank is None:
        _around.report(writer, data, step, ends_step="time/step" in data)


def _patch_runner_timer(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "ScopedTimer.__call__", _runner_timer)


def _runner_timer(original: Any, switch: Switch) -> Any:
    def run(timer: Any, *args: Any, **kwargs: Any) -> Any:
        inner = original(timer, *args, **kwargs)
        name = args[0] if args else kwargs.get("name")
        if not switch.is_on or name not in _STAGES:
            return inner
        switch.see()
        return _timed(inner, name)

    return run


def _patch_worker(patches: PatchSet, module: ModuleType) -> None:
    import inspect  # noqa: PLC0415 (10 ms; RLinf has loaded it)

    timer = getattr(getattr(module, "Worker", None), "worker_timer", None)
    if timer is not None and "tag" in inspect.signature(timer).parameters:
        put(patches, module, "Worker.worker_timer", _worker_timer)


def _worker_timer(original: Any, switch: Switch) -> Any:
    def run(worker: Any, *args: Any, **kwargs: Any) -> Any:
        tag = args[0] if args else kwargs.get("tag")
        if tag is None:  # the original looks for its caller on the stack, where we are one more
            tag = sys._getframe(1).f_code.co_name  # noqa: SLF001
            args, kwargs = (tag, *args[1:]), {k: v for k, v in kwargs.items() if k != "tag"}
        inner = original(worker, *args, **kwargs)
        if not switch.is_on:
            return inner
        switch.see()
        _around.see(_claim_role, worker)
        return _timed(inner, tag) if tag in _STAGES else inner

    return run


@contextmanager
def _timed(inner: AbstractContextManager[Any], tag: str) -> Iterator[Any]:
    with StageOnce(_STAGES[tag]), inner as value:
        yield value


def _claim_role(writer: Recorder, worker: Any) -> None:
    """Group names are the job's own words ("ActorGroup", "RolloutGroup"): the first one counts."""
    group = str(getattr(worker, "_group_name", "") or "")
    _around.claim(writer, group.removesuffix("Group").lower())


PARTS: dict[str, tuple[str, Callable[[PatchSet, ModuleType], None]]] = {
    "logger": ("rlinf.utils.metric_logger", _patch_logger),
    "runner_timer": ("rlinf.utils.distributed", _patch_runner_timer),
    "worker": ("rlinf.scheduler.worker.worker", _patch_worker),
}
