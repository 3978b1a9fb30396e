"""UniLab (unilab-rl 1.4): learner in the main process, collector in a spawned one.

Source: unilab-rl 1.4.15. The loggers' schema is closed (an unknown name raises), so metrics are
read at ``_write_backend_scalars`` and never added. The four waits of the learner stay four kinds:
collector, replay_batch, barrier (statistics over ranks) and sync_coordination (handing the actions
back). Native numbers of ranks other than 0 are 0 or averaged; the spans are each rank's own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import _around
from dfx_agent.shim.adapters._around import put, span, waiting
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.spans import wait

FRAMEWORK = "unilab"


def _patch_offpolicy(patches: PatchSet, module: ModuleType) -> None:
    logger = "OffPolicyLogger"
    put(patches, module, f"{logger}._write_backend_scalars", _around.funnel(_read_scalars))
    put(patches, module, f"{logger}.log_step", span("logger", kind=wait, read=_next_iteration))


def _patch_onpolicy(patches: PatchSet, module: ModuleType) -> None:
    logger = "OnPolicyLogger"
    put(patches, module, f"{logger}._write_backend_scalars", _around.funnel(_read_scalars))
    put(patches, module, f"{logger}.log_step", span("logger", kind=wait, read=_next_iteration))


def _read_scalars(writer: Recorder, _logger: Any, scalars: Any, iteration: Any) -> None:
    _around.report(writer, scalars, iteration)


def _next_iteration(writer: Recorder, _logger: Any, iteration: Any, *_: Any, **__: Any) -> None:
    """Every rank calls it at the end of an iteration, also where no backend is due."""
    _around.claim(writer, "learner")
    number = _around.step_number(iteration)
    if number is not None:
        _around.begin_step(writer, number + 1)


def _patch_runner(patches: PatchSet, module: ModuleType) -> None:
    runner = "DoubleBufferOffPolicyRunner"
    put(patches, module, f"{runner}._wait_for_inference_request", waiting("collector"))
    put(patches, module, f"{runner}._wait_for_replay_batch_ready", waiting("replay_batch"))
    put(patches, module, f"{runner}._release_inference_tick", waiting("sync_coordination"))
    put(patches, module, f"{runner}._serve_learner_inference", span("inference"))
    put(patches, module, f"{runner}._save_checkpoint", span("checkpoint"))


def _patch_dp_sync(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "DpParameterSync.allreduce_statistics", waiting("barrier"))
    put(patches, module, "DpParameterSync.broadcast_from_rank0", span("param_sync"))


def _patch_ring(owner: str) -> Callable[[PatchSet, ModuleType], None]:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        put(patches, module, f"{owner}.wait_for_data", waiting("collector"))
        put(patches, module, f"{owner}.signal_write_done", _around.before(_claim_collector))

    return patch


def _patch_weights(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "SharedWeightSync.write_weights", span("weight_sync"))
    put(patches, module, "SharedWeightSync.read_weights_into", span("weight_sync"))


def _patch_learner(owner: str) -> Callable[[PatchSet, ModuleType], None]:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        put(patches, module, f"{owner}.update_critic", span("critic_update"))
        put(patches, module, f"{owner}.update_actor", span("actor_update"))
        put(patches, module, f"{owner}.update_cycle", span("actor_update"))

    return patch


def _patch_appo(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "APPOLearner.update", span("actor_update"))


def _patch_collector(patches: PatchSet, module: ModuleType) -> None:
    """What the process target calls: the target is pickled by name, and must stay what it was."""
    tick = span("policy", kind=wait, read=_claim_collector)
    put(patches, module, "_run_collector", _around.before(_claim_collector))
    put(patches, module, "_wait_for_inference_tick", tick)


def _claim_collector(writer: Recorder, *_: Any, **__: Any) -> None:
    _around.claim(writer, "collector")


PARTS: dict[str, tuple[str, Callable[[PatchSet, ModuleType], None]]] = {
    "offpolicy_logger": ("uni_rl.logging.offpolicy", _patch_offpolicy),
    "onpolicy_logger": ("uni_rl.logging.onpolicy", _patch_onpolicy),
    "runner": ("uni_rl.offpolicy.double_buffer_runner", _patch_runner),
    "dp_sync": ("uni_rl.ipc.dp_sync", _patch_dp_sync),
    "ring": ("uni_rl.ipc.rollout_ring_buffer", _patch_ring("RolloutRingBuffer")),
    "tensor_ring": (
        "uni_rl.ipc.tensor_rollout_ring_buffer",
        _patch_ring("TensorRolloutRingBuffer"),
    ),
    "weights": ("uni_rl.ipc.weight_sync", _patch_weights),
    "sac": ("uni_rl.algos.sac.learner", _patch_learner("SACLearner")),
    "flash_sac": ("uni_rl.algos.flash_sac.learner", _patch_learner("FlashSACLearner")),
    "appo": ("uni_rl.algos.appo.learner", _patch_appo),
    "collector": ("uni_rl.offpolicy.worker", _patch_collector),
}
