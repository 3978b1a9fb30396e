"""verl: metrics and timers in the driver, registered methods in the Ray workers.

Sources: verl-project/verl 1dda039 and PyPI 0.9.1. Every timer of every trainer ends in
``verl.utils.profiler.performance._timer``, which is looked up at each call. Every method that a
``RayWorkerGroup`` calls was registered by ``register`` (see ``_verl_workers``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, ModuleType
from typing import Any

import dfx_agent.shim as dfx
from dfx_agent.shim import recorder
from dfx_agent.shim.adapters import Parts, _around, _verl_samples, _verl_workers
from dfx_agent.shim.adapters._around import wrap
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.spans import Onloading

# In V1 and fully_async "gen" is the wait for enough finished samples, in V0 the generation itself.
_STAGE_OF_TIMER = {
    "gen": "rollout",
    "gen_max": "rollout",
    "generate_async": "rollout",
    "generate_sequences": "rollout",
    "reward": "reward",
    "compute_score": "reward",
    "old_log_prob": "old_logprob",
    "ref": "ref_logprob",
    "values": "values",
    "adv": "advantage",
    "update_critic": "critic_update",
    "update_actor": "actor_update",
    "update_weights": "weight_sync",
    "sync_rollout_weights": "weight_sync",
    "timing_s/param_sync": "weight_sync",
    "switch_to_rollout": "offload",
    "switch_to_trainer": "offload",
    "save_checkpoint": "checkpoint",
    "testing": "validation",
    "rollouter/validate_time": "validation",
}
_WAIT_OF_TIMER = {
    "wait_prev_gen": "queue",
    "wait_for_enough_samples": "queue",
    "switch_wait": "sync_coordination",
}
_WHOLE_STEP = "step"
_FRAMES_UP = 8
_HAS_FAST_LOCALS = 1  # inspect.CO_OPTIMIZED


def _patch_tracking(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "Tracking.log", _around.funnel(_read_report))


def _read_report(
    writer: Recorder, _tracking: Any, data: Any, step: Any, *_: Any, **__: Any
) -> None:
    _around.report(writer, data, step, ends_step=True)


def _patch_timers(patches: PatchSet, module: ModuleType) -> None:
    import inspect  # noqa: PLC0415 (10 ms; verl has loaded it)

    if inspect.isgeneratorfunction(getattr(module, "_timer", None)):
        patches.replace(module, "_timer", _timed)


def _timed(original: Any, switch: Switch) -> Any:
    """Wrap verl's generator by a generator: ``marked_timer`` uses it with ``yield from``."""

    def _timer(name: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        if switch.is_on:
            switch.mark_used()
        with _span_of_timer(name) if switch.is_on else nullcontext():
            yield from original(name, *args, **kwargs)

    return _timer


def _span_of_timer(name: Any) -> AbstractContextManager[Any]:
    if name == _WHOLE_STEP:  # gaps between its stages are idle time, not a stage
        _begin_first_step()
        return nullcontext()
    if name in _WAIT_OF_TIMER:
        return dfx.wait(_WAIT_OF_TIMER[name])
    made = Onloading if name == "switch_to_trainer" else dfx.stage
    return made(_STAGE_OF_TIMER.get(name, str(name)))


def _begin_first_step() -> None:
    """Read the number of the first step; later steps begin at the report of the previous one."""
    writer = recorder.current or recorder.active()
    if writer is None or writer.step is not None:
        return
    frame = sys._getframe()  # noqa: SLF001 (documented; the only way to a number nobody passes on)
    for _ in range(_FRAMES_UP):
        if frame.f_back is None:
            return
        frame = frame.f_back
        number = getattr(_first_argument(frame), "global_steps", None)
        if isinstance(number, int):
            _around.begin_step(writer, number)
            return


def _first_argument(frame: FrameType) -> Any:
    """``self`` of a method; None for any other frame."""
    names = frame.f_locals
    trainer = names.get("self")
    if type(names) is dict and frame.f_code.co_flags & _HAS_FAST_LOCALS:
        names.clear()  # before Python 3.13 a copy that would prolong the life of the batch
    return trainer


def _patch_agent_loop(patches: PatchSet, module: ModuleType) -> None:
    """Verl's own timer measures its generation per sample."""
    wrap(patches, module, "AgentLoopWorker.__init__", _around.after(_claim_rollout))


def _claim_rollout(writer: Recorder, *_: Any, **__: Any) -> None:
    _around.claim(writer, "rollout")


def _patch_reward_loop(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "RewardLoopWorker.__init__", _around.after(_claim_reward))
    wrap(patches, module, "RewardLoopWorker.compute_score", _around.span("reward"))


def _claim_reward(writer: Recorder, *_: Any, **__: Any) -> None:
    _around.claim(writer, "reward")


PARTS: Parts = {
    "tracking": ("verl.utils.tracking", _patch_tracking),
    "timers": ("verl.utils.profiler.performance", _patch_timers),
    "mismatch": ("verl.utils.debug.metrics", _verl_samples.patch_debug_metrics),
    "lags": ("verl.trainer.ppo.v1.trainer_base", _verl_samples.patch_v1),
    "methods": ("verl.single_controller.base.decorator", _verl_workers.patch_methods),
    "agent_loop": ("verl.experimental.agent_loop.agent_loop", _patch_agent_loop),
    "reward_loop": ("verl.experimental.reward_loop.reward_loop", _patch_reward_loop),
}
