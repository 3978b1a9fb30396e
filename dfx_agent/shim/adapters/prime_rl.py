"""prime-rl: trainer (torchrun) and orchestrator (one asyncio process) are two programs.

Source: PrimeIntellect-ai/prime-rl 559b447; up to v0.8 the funnel is ``MultiMonitor.log``. In
both programs "time/step" comes once per step, at its end. The orchestrator has a second path on a
time axis (event loop lag, dispatcher, watcher), which is read without wandb too.

The shape ledger looks at the packed micro-batches of each trainer rank, on the host. There is no
second boundary: packing leaves no ids and another number of rows than the orchestrator has
samples, so that what the two had in common by chance would pass for a habit.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import _around
from dfx_agent.shim.adapters._around import put, span
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder

# of a TensorMicroBatch, what each of them has
_PACKED = ("input_ids", "position_ids", "loss_mask", "advantages", "inference_logprobs")


def _patch_monitors(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "log", _around.funnel(_read_data))


def _read_data(writer: Recorder, data: Any, step: Any = None, *_: Any, **__: Any) -> None:
    """A dict of metrics; finished episodes come the same way and are passed over."""
    if isinstance(data, dict):
        _around.report(writer, data, step, ends_step="time/step" in data)


def _patch_old_monitors(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "MultiMonitor.log", _around.funnel(_read_metrics))


def _read_metrics(writer: Recorder, _monitor: Any, metrics: Any, step: Any = None) -> None:
    _read_data(writer, metrics, step)


def _patch_periodic(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "PeriodicLogger.emit", _emit_wrapper)


def _emit_wrapper(original: Any, switch: Switch) -> Any:
    """``collect`` empties the counters that it reads: so its result is taken, once."""
    keep = _around.after(_read_collected)
    muted = _around.quiet()(original, switch)

    def emit(logger: Any, *args: Any, **kwargs: Any) -> Any:
        own = getattr(logger, "__dict__", {})
        if not switch.is_on or "collect" not in own:
            return original(logger, *args, **kwargs)
        collect = own["collect"]
        own["collect"] = keep(collect, switch)
        try:
            return muted(logger, *args, **kwargs)
        finally:
            own["collect"] = collect

    return emit


def _read_collected(writer: Recorder, collected: Any) -> None:
    _around.claim(writer, "orchestrator")
    _body, payload = collected
    _around.report(writer, {**payload, **_slot_usage(payload)}, None)


def _slot_usage(payload: Any) -> dict[str, float]:
    """Train and eval share the places; more than 1 where these were made fewer meanwhile."""
    num_places = payload.get("concurrency/max_inflight")
    taken = [payload.get(f"dispatcher/inflight/{kind}") for kind in ("train", "eval")]
    if not num_places or None in taken:
        return {}
    return {"pipeline/slot_usage/all": sum(taken) / num_places}


def _patch_inference(patches: PatchSet, module: ModuleType) -> None:
    """``build_metrics`` in main, ``smooth_metrics`` from v0.6 to v0.8: what wandb gets after it."""
    collector = "InferenceMetricsCollector"
    for method in ("build_metrics", "smooth_metrics"):
        if hasattr(getattr(module, collector, None), method):
            put(patches, module, f"{collector}.{method}", _around.after(_read_inference))
            put(patches, module, f"{collector}.collect_and_log", _around.quiet())
            return


def _read_inference(writer: Recorder, metrics: Any, *_: Any, **__: Any) -> None:
    _around.report(writer, metrics, None)


def _patch_orchestrator(patches: PatchSet, module: ModuleType) -> None:
    ship = "Orchestrator.finalize_train_batch"
    put(patches, module, ship, _around.before(_claim_orchestrator))
    put(patches, module, "Orchestrator.maybe_save_ckpt", span("checkpoint"))


def _claim_orchestrator(writer: Recorder, *_: Any, **__: Any) -> None:
    _around.claim(writer, "orchestrator")


def _read_packed(writer: Recorder, micro_batches: Any, *_: Any, **__: Any) -> None:
    _around.crossing(writer, "actor_update", micro_batches, _PACKED)


def _patch_data(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "DataLoader.get_batch", _around.after(_read_packed))
    put(patches, module, "DataLoader.wait_for_batch", _around.waiting("queue"))


def _patch_broadcast(owner: str) -> Callable[[PatchSet, ModuleType], None]:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        put(patches, module, f"{owner}.broadcast_weights", span("weight_sync"))

    return patch


def _patch_checkpoint(patches: PatchSet, module: ModuleType) -> None:
    put(patches, module, "CheckpointManager.save", span("checkpoint"))


_WEIGHTS = "prime_rl.transports.weights"
PARTS: dict[str, tuple[str, Callable[[PatchSet, ModuleType], None]]] = {
    "monitors": ("prime_rl.monitors", _patch_monitors),
    "monitors_v08": ("prime_rl.utils.monitor.multi", _patch_old_monitors),
    "periodic": ("prime_rl.orchestrator.periodic_logger", _patch_periodic),
    "inference_metrics": ("prime_rl.orchestrator.inference_metrics", _patch_inference),
    "orchestrator": ("prime_rl.orchestrator.orchestrator", _patch_orchestrator),
    "data": ("prime_rl.trainer.rl.data", _patch_data),
    "weights_filesystem": (f"{_WEIGHTS}.filesystem", _patch_broadcast("FileSystemWeightBroadcast")),
    "weights_nccl": (f"{_WEIGHTS}.nccl", _patch_broadcast("NCCLWeightBroadcast")),
    "weights_nixl": (f"{_WEIGHTS}.nixl.nixl", _patch_broadcast("NIXLWeightBroadcast")),
    "checkpoint": ("prime_rl.trainer.ckpt", _patch_checkpoint),
}
