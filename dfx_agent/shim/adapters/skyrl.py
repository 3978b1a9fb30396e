"""SkyRL: one driver with a tracker and named timers; hooks on torch observe the workers.

Source: NovaSky-AI/SkyRL a956457 (0.3.0). The report with "timing/step" is the last one of a step.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, _around
from dfx_agent.shim.adapters._around import StageOnce, wrap
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder

# names of the timers; others keep theirs
_STAGES = {
    "generate": "rollout",
    "fwd_logprobs_values_reward": "old_logprob",  # old, reference and values in one
    "compute_advantages_and_returns": "advantage",
    "policy_train": "actor_update",
    "critic_train": "critic_update",
    "sync_weights": "weight_sync",
    "sync_weights_to_inference_engines": "weight_sync",
    "save_checkpoints": "checkpoint",
    "save_hf_model": "checkpoint",
    "eval": "validation",
}


def _patch_tracking(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "Tracking.log", _around.funnel(_read_log))


def _read_log(writer: Recorder, _tracking: Any, data: Any, step: Any, *_: Any, **__: Any) -> None:
    _around.report(writer, data, step, ends_step="timing/step" in data)


def _patch_timers(patches: PatchSet, module: ModuleType) -> None:
    """A timer is one object per block of code; "step" is the step and no stage."""
    running: dict[int, StageOnce] = {}

    def begin(_writer: Recorder, timer: Any, *_: Any, **__: Any) -> None:
        if timer.message != "step":
            name = _STAGES.get(timer.message, timer.message)
            running[id(timer)] = StageOnce(name).__enter__()

    def end(_writer: Recorder, timer: Any, *_: Any, **__: Any) -> None:
        stage = running.pop(id(timer), None)
        if stage is not None:
            stage.__exit__(None, None, None)

    for prefix in ("", "a"):
        wrap(patches, module, f"Timer.__{prefix}enter__", _around.before(begin))
        wrap(patches, module, f"Timer.__{prefix}exit__", _around.before(end))


PARTS: Parts = {
    "tracking": ("skyrl.train.utils.tracking", _patch_tracking),
    "timers": ("skyrl.train.utils.utils", _patch_timers),
}
