"""NeMo-RL: one driver with a logger and named timers; hooks on torch observe the workers.

Source: NVIDIA-NeMo/RL 7ea279a. It emits no OpenTelemetry spans of its own. Names of metrics are
those that its trackers get: prefix, "/", name. The report with ``step_finished`` ends the step.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, _around
from dfx_agent.shim.adapters._around import StageOnce, wrap
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.spans import wait

# labels of the timers; others keep theirs, and parts of one ("policy_training/shard") are left out
_STAGES = {
    "generation": "rollout",
    "reward_calculation": "reward",
    "policy_and_reference_logprobs": "old_logprob",
    "value_inference": "values",
    "advantage_calculation": "advantage",
    "policy_training": "actor_update",
    "value_training": "critic_update",
    "prepare_for_generation/total": "weight_sync",
    "weight_sync": "weight_sync",
    "offload_before_refit": "offload",
    "policy_offload_after_refit": "offload",
    "checkpointing": "checkpoint",
    "total_validation_time": "validation",
}
_WAITS = {"exposed_generation": "queue", "idle/buffer_starvation": "queue"}
_NO_STAGES = frozenset({"total_step_time"})


def _patch_logger(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "Logger.log_metrics", _around.funnel(_read_metrics))


def _read_metrics(
    writer: Recorder,
    _logger: Any,
    metrics: Any,
    step: Any,
    prefix: Any = "",
    step_metric: Any = None,
    step_finished: Any = None,
) -> None:
    named = {f"{prefix}/{key}": value for key, value in metrics.items()} if prefix else metrics
    number = None if step_metric else step  # else the step is one of its own, such as a second
    _around.report(writer, named, number, ends_step=bool(step_finished))


def _patch_timers(patches: PatchSet, module: ModuleType) -> None:
    running: dict[tuple[int, str], Any] = {}

    def begin(_writer: Recorder, _: None, timer: Any, label: str, *__: Any, **___: Any) -> None:
        span = _span_of(label)
        if span is not None:
            running[id(timer), label] = span.__enter__()

    def end(_writer: Recorder, timer: Any, label: str, *_: Any, **__: Any) -> None:
        span = running.pop((id(timer), label), None)
        if span is not None:
            span.__exit__(None, None, None)

    wrap(patches, module, "Timer.start", _around.after(begin))
    wrap(patches, module, "Timer.stop", _around.before(end))


def _span_of(label: str) -> Any:
    if label in _WAITS:
        return wait(_WAITS[label])
    if label in _NO_STAGES or ("/" in label and label not in _STAGES):
        return None
    return StageOnce(_STAGES.get(label, label))


PARTS: Parts = {
    "logger": ("nemo_rl.utils.logger", _patch_logger),
    "timers": ("nemo_rl.utils.timer", _patch_timers),
}
