"""UniLab's learner and collector, in either of its packages: their waits and stages.

Source: unilab-rl 0.2.0, 1.0.0 and 1.4.15 (``uni_rl``), unilab 1.5.2 (``unilab.rl``). The schema of
the loggers is closed (an unknown name raises), so metrics are read in ``_write_backend_scalars``
and never added. Before 1.4 the tracker's adapter reads them.

The learner's four waits stay four kinds: collector, replay_batch, barrier (statistics over ranks)
and sync_coordination (handing the actions back). Logging is a separate wait, even inside the loop
that waits for the collector. UniLab's own numbers for ranks other than 0 are 0 or averaged; the
spans are measured on each rank.

The shape ledger of APPO inspects what the learner receives and what it trains. An off-policy
learner draws different replay rows each time, so no second boundary has the same samples: a drawn
batch is inspected once in 10 s. A collector does not know the step, so its rows are not inspected.
"""

from __future__ import annotations

import os
import time
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Patch, _around
from dfx_agent.shim.adapters._around import span, waiting, wrap
from dfx_agent.shim.ledger import observe
from dfx_agent.shim.patches import PatchSet
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.spans import wait
from dfx_agent.wire.layout import UNKNOWN

# set by uni_rl's launcher for ranks other than 0; collectors inherit them
_RANK, _WORLD_SIZE = "UNILAB_DP_RANK", "UNILAB_DP_WORLD_SIZE"
_WITH_SCALARS = "_write_backend_scalars"
_READ_DEFERRED = (
    "read_deferred_update_metrics",
    "read_deferred_cycle_metrics",
    "read_deferred_actor_metrics",
)
# columns of a rollout batch that have one row per step
_APPO = (
    "observations", "critic", "actions", "actions_log_prob", "rewards", "dones", "truncated",
    "values", "returns", "advantages", "target_log_probs",
)  # fmt: skip
_DRAWN_SECONDS = 10.0


def patch_logger(logger: str) -> Patch:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        wrap(patches, module, f"{logger}.{_WITH_SCALARS}", _around.funnel(_read_scalars))
        wrap(patches, module, f"{logger}.log_step", span("logger", kind=wait, read=_next_iteration))
        wrap(patches, module, f"{logger}.log_buffer_fill", waiting("logger"))

    return patch


def _read_scalars(writer: Recorder, _logger: Any, scalars: Any, iteration: Any) -> None:
    _around.report(writer, scalars, iteration)


def _next_iteration(writer: Recorder, _logger: Any, iteration: Any, *_: Any, **__: Any) -> None:
    """Every rank calls it at the end of an iteration, even if no backend is due."""
    _claim_learner(writer)
    number = _around.step_number(iteration)
    if number is not None:
        _around.begin_step(writer, number + 1)


def patch_runner(patches: PatchSet, module: ModuleType) -> None:
    runner = "DoubleBufferOffPolicyRunner"
    wrap(patches, module, f"{runner}.learn", _around.before(_claim_learner))
    wrap(patches, module, f"{runner}._wait_for_inference_request", waiting("collector"))
    wrap(patches, module, f"{runner}._wait_for_replay_batch_ready", waiting("replay_batch"))
    wrap(patches, module, f"{runner}._release_inference_tick", waiting("sync_coordination"))
    wrap(patches, module, f"{runner}._serve_learner_inference", span("inference"))
    wrap(patches, module, f"{runner}._save_checkpoint", span("checkpoint"))


def patch_dp_sync(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "DpParameterSync.allreduce_statistics", waiting("barrier"))
    wrap(patches, module, "DpParameterSync.allreduce_gradients", span("param_sync"))
    wrap(patches, module, "DpParameterSync.broadcast_from_rank0", span("param_sync"))


def patch_pipeline(owner: str) -> Patch:
    """Patch the replay ring on the device."""

    def patch(patches: PatchSet, module: ModuleType) -> None:
        wrap(patches, module, f"{owner}.progress", span(_for_published_rows, kind=wait))
        wrap(patches, module, f"{owner}._submit_span_copy", span(_copy_of_learner))
        wrap(patches, module, f"{owner}.sample_large_batch", span("replay_sample"))
        wrap(patches, module, f"{owner}.sample_large_batch", _around.after(_drawn()))

    return patch


def _drawn() -> _around.Read:
    next_seconds = 0.0

    def read(writer: Recorder, batch: Any, *_: Any, **__: Any) -> None:
        nonlocal next_seconds
        now = time.monotonic()
        if now >= next_seconds:
            next_seconds = now + _DRAWN_SECONDS
            observe(writer, "replay_sample", batch)

    return read


def _for_published_rows(_pipeline: Any, *, wait: bool = False) -> str | None:
    """A poll is not a wait; with ``wait`` the learner waits for rows of the collector."""
    return "collector" if wait else None


def _copy_of_learner(pipeline: Any, *_: Any, **__: Any) -> str | None:
    """Name of the copy's stage; None in another thread, where the learner does not wait."""
    return "h2d" if getattr(pipeline, "_main_thread_submission", False) else None


def patch_staging(patches: PatchSet, module: ModuleType) -> None:
    """Rollouts on their way to the learner's device: tensors, or numpy before unilab-rl 1.4."""
    for owner, stage in (
        ("TensorRolloutStagingPool", "stage_tensor_views"),
        ("RolloutStagingPool", "stage_numpy_views"),
    ):
        wrap(patches, module, f"{owner}.{stage}", span("h2d"))
        wrap(patches, module, f"{owner}.batch", span("replay_sample"))


def patch_ring(owner: str) -> Patch:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        wrap(patches, module, f"{owner}.wait_for_data", waiting("collector"))
        wrap(patches, module, f"{owner}.signal_write_done", _around.before(_claim_collector))

    return patch


def patch_weights(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "SharedWeightSync.write_weights", span("weight_sync"))
    wrap(patches, module, "SharedWeightSync.read_weights_into", span("weight_sync"))


def patch_learner(owner: str) -> Patch:
    """Reading deferred metrics waits for the device, so it is the end of the update."""

    def patch(patches: PatchSet, module: ModuleType) -> None:
        for name in ("update_critic", "update_critic_cuda_graph"):
            wrap(patches, module, f"{owner}.{name}", span("critic_update"))
        for name in ("update_actor", "update_actor_cuda_graph", "update_cycle", *_READ_DEFERRED):
            wrap(patches, module, f"{owner}.{name}", span("actor_update"))
        wrap(patches, module, f"{owner}.soft_update_target", span("target_update"))

    return patch


def patch_appo(patches: PatchSet, module: ModuleType) -> None:
    for name, stage in (("process_batch", "advantage"), ("update", "actor_update")):
        wrap(patches, module, f"APPOLearner.{name}", span(stage, read=_read_rollouts(stage)))


def _read_rollouts(stage: str) -> _around.Read:
    def read(writer: Recorder, _learner: Any, batch: Any, *_: Any, **__: Any) -> None:
        observe(writer, stage, {name: batch[name] for name in _APPO if name in batch})

    return read


def patch_replay(patches: PatchSet, module: ModuleType) -> None:
    for name in ("add", "add_batch"):
        wrap(patches, module, f"ReplayBuffer.{name}", span("replay"))


def patch_collector(patches: PatchSet, module: ModuleType) -> None:
    """Patch what the process target calls. The target is pickled by name and must not change.

    The environment is the user's own class. The collector passes it to ``get_algo_capabilities``.
    """
    classes: set[type] = set()

    def watch(_writer: Recorder, env: Any) -> None:
        if type(env) not in classes:
            classes.add(type(env))
            wrap(patches, type(env), "step", span("env_step"))

    tick = span("policy", kind=wait, read=_claim_collector)
    wrap(patches, module, "_run_collector", _around.before(_claim_collector))
    wrap(patches, module, "_wait_for_inference_tick", tick)
    wrap(patches, module, "_publish_inference_tick", waiting("sync_coordination"))
    wrap(patches, module, "get_algo_capabilities", _around.before(watch))


def _claim_learner(writer: Recorder, *_: Any, **__: Any) -> None:
    _claim(writer, "learner")


def _claim_collector(writer: Recorder, *_: Any, **__: Any) -> None:
    _claim(writer, "collector")


def _claim(writer: Recorder, role: str) -> None:
    """The rank comes from the launcher's variable, or is 0 without it, as in the framework."""
    numbers: dict[str, int] = {}
    if writer.identity.rank == UNKNOWN:
        numbers["rank"] = int(os.environ.get(_RANK, "0"))
    if writer.identity.world_size == UNKNOWN and _WORLD_SIZE in os.environ:
        numbers["world_size"] = int(os.environ[_WORLD_SIZE])
    _around.claim(writer, role, **numbers)
