"""prime-rl: trainer (torchrun) and orchestrator (one asyncio process) are two programs.

Source: PrimeIntellect-ai/prime-rl 559b447; up to v0.8 all metrics pass ``MultiMonitor.log``. In
both programs "time/step" is reported once per step, at its end. The orchestrator also reports on a
time axis (event loop lag, dispatcher, watcher), which is read even without wandb.

The shape ledger inspects the packed micro-batches of each trainer rank, on the host. There is no
second boundary: packing removes ids and changes the number of rows, so batches cannot be compared.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dfx_agent.shim.adapters import Parts, Patch, _around
from dfx_agent.shim.adapters._around import span, wrap
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder

# columns that every TensorMicroBatch has
_PACKED = ("input_ids", "position_ids", "loss_mask", "advantages", "inference_logprobs")


def _patch_monitors(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "log", _around.funnel(_read_data))


def _read_data(writer: Recorder, data: Any, step: Any = None, *_: Any, **__: Any) -> None:
    """Report a dict of metrics; finished episodes use the same function and are ignored."""
    if isinstance(data, dict):
        _around.report(writer, data, step, ends_step="time/step" in data)


def _patch_old_monitors(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "MultiMonitor.log", _around.funnel(_read_metrics))


def _read_metrics(writer: Recorder, _monitor: Any, metrics: Any, step: Any = None) -> None:
    _read_data(writer, metrics, step)


def _patch_periodic(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "PeriodicLogger.emit", _emit_wrapper)


def _emit_wrapper(original: Any, switch: Switch) -> Any:
    """``collect`` resets the counters that it reads, so its one result is recorded."""
    record = _around.after(_read_collected)
    muted = _around.quiet()(original, switch)

    def emit(logger: Any, *args: Any, **kwargs: Any) -> Any:
        own = getattr(logger, "__dict__", {})
        if not switch.is_on or "collect" not in own:
            return original(logger, *args, **kwargs)
        collect = own["collect"]
        own["collect"] = record(collect, switch)
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
    """Train and eval share the slots; more than 1 if the number of slots was reduced meanwhile."""
    num_slots = payload.get("concurrency/max_inflight")
    used = [payload.get(f"dispatcher/inflight/{kind}") for kind in ("train", "eval")]
    if not num_slots or None in used:
        return {}
    return {"pipeline/slot_usage/all": sum(used) / num_slots}


def _patch_inference(patches: PatchSet, module: ModuleType) -> None:
    """Patch ``build_metrics`` (main) or ``smooth_metrics`` (v0.6 to v0.8), which wandb reports."""
    collector = "InferenceMetricsCollector"
    for method in ("build_metrics", "smooth_metrics"):
        if hasattr(getattr(module, collector, None), method):
            wrap(patches, module, f"{collector}.{method}", _around.after(_read_inference))
            wrap(patches, module, f"{collector}.collect_and_log", _around.quiet())
            return


def _read_inference(writer: Recorder, metrics: Any, *_: Any, **__: Any) -> None:
    _around.report(writer, metrics, None)


def _patch_orchestrator(patches: PatchSet, module: ModuleType) -> None:
    ship = "Orchestrator.finalize_train_batch"
    wrap(patches, module, ship, _around.before(_claim_orchestrator))
    wrap(patches, module, "Orchestrator.maybe_save_ckpt", span("checkpoint"))


def _claim_orchestrator(writer: Recorder, *_: Any, **__: Any) -> None:
    _around.claim(writer, "orchestrator")


def _read_packed(writer: Recorder, micro_batches: Any, *_: Any, **__: Any) -> None:
    _around.observe_parts(writer, "actor_update", micro_batches, _PACKED)


def _patch_data(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "DataLoader.get_batch", _around.after(_read_packed))
    wrap(patches, module, "DataLoader.wait_for_batch", _around.waiting("queue"))


def _patch_broadcast(owner: str) -> Patch:
    def patch(patches: PatchSet, module: ModuleType) -> None:
        wrap(patches, module, f"{owner}.broadcast_weights", span("weight_sync"))

    return patch


def _patch_checkpoint(patches: PatchSet, module: ModuleType) -> None:
    wrap(patches, module, "CheckpointManager.save", span("checkpoint"))


_WEIGHTS = "prime_rl.transports.weights"
PARTS: Parts = {
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
