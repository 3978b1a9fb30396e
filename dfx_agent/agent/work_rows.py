"""How much of what its device could do a rank did: model FLOPs utilisation (MFU), by stage.

MFU = model FLOPs / (peak FLOP/s x time). The time of a stage is that in which it was open, with its
waits; that of the step its wall time. Where several types of numbers were used, each has its peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dfx_agent.agent import model_configs
from dfx_agent.agent.config_flops import ConfigFlops
from dfx_agent.agent.peak_flops import Peaks
from dfx_agent.node.process import Process
from dfx_agent.node.time.closed_step import ClosedStep
from dfx_agent.node.time.work import ClosedWork, Work
from dfx_agent.snapshot import ModelRow, StageWork, WorkRow

# steps in which work is looked for: with a guest above its budget one in 16 has any
_NUM_LATEST = 20
_TRAINED = "actor_update"  # of the stages that report their passes, those with a backward pass
_UNSEEN = "no hook sees its models: set model_config to their config.json"


def work_row(
    process: Process, peaks: Peaks, configs: Mapping[str, ConfigFlops] | None = None
) -> WorkRow | None:
    """Work of the latest step with counted FLOPs; None if no hook has seen a model.

    A model that cannot be counted has only a reason. ``configs``: by role, for stages that report
    their passes and whose FLOPs no hook has counted.
    """
    models = tuple(ModelRow(*model) for model in process.follower.layout.models.values())
    latest = [step for step in list(process.windows)[-_NUM_LATEST:] if step.work is not None]
    latest.sort(key=lambda step: bool(step.work and step.work.flops))  # those of the hooks last
    device = _device(process)
    if not latest:
        reasons = "; ".join(f"{model.name}: {model.reason}" for model in models if model.reason)
        return _uncounted(device, models, reasons) if reasons else None
    closed = latest[-1]
    work, used = _with_configs(
        closed.work or ClosedWork(), process.registered_as.role, configs or {}
    )
    models += tuple(
        ModelRow(c.name, c.num_parameters, c.num_trained, c.num_attentions) for c in used
    )
    if not work.flops:
        return _uncounted(device, models, _UNSEEN)
    return _row(closed, work, device, models, peaks)


def _device(process: Process) -> str:
    """As the guest's torch calls it, else as its driver does."""
    kind, name = process.follower.layout.device or ("", "")
    return name or process.devices.model or kind


def _with_configs(
    work: ClosedWork, role: str, configs: Mapping[str, ConfigFlops]
) -> tuple[ClosedWork, tuple[ConfigFlops, ...]]:
    """With the FLOPs of stages that no hook has counted, and by what they were."""
    flops, used = dict(work.flops), list[ConfigFlops]()
    seen = {key.stage for key in work.flops}
    for stage, passes in work.passes.items():
        config = model_configs.of_stage(configs, role, stage)
        if config is None or stage in seen:
            continue
        used.append(config)
        flops[Work("forward", config.dtype, stage)] = config.forward(*passes)
        if stage == _TRAINED:
            flops[Work("backward", config.dtype, stage)] = config.backward(*passes)
    return replace(work, flops=flops), tuple(dict.fromkeys(used))


def _uncounted(device: str, models: tuple[ModelRow, ...], reason: str) -> WorkRow:
    return WorkRow(None, 0.0, device, (), None, "unknown", None, reason, models)


def _row(
    closed: ClosedStep, work: ClosedWork, device: str, models: tuple[ModelRow, ...], peaks: Peaks
) -> WorkRow:
    seconds = closed.window.split.as_seconds().wall_seconds
    stages = sorted({key.stage for key in work.flops})
    rows = tuple(_stage(stage, work, device, peaks) for stage in stages)
    largest = max(work.flops, key=lambda key: work.flops[key])
    peak, source = peaks.peak(device, largest.dtype)
    ratio = _mfu(work.flops, seconds, device, peaks)
    return WorkRow(
        step=closed.window.step,
        seconds=seconds,
        device=device,
        stages=rows,
        mfu_ratio=ratio,
        peak_source=source,
        peak_flops_per_second=peak,
        reason="" if ratio is not None else _reason(device, work.flops, peaks),
        models=models,
    )


def _stage(stage: str, work: ClosedWork, device: str, peaks: Peaks) -> StageWork:
    own = {key: flops for key, flops in work.flops.items() if key.stage == stage}
    seconds = work.stage_seconds.get(stage)
    return StageWork(
        stage,
        sum(flops for key, flops in own.items() if key.way == "forward"),
        sum(flops for key, flops in own.items() if key.way == "backward"),
        seconds,
        _mfu(own, seconds, device, peaks),
    )


def _mfu(
    flops: Mapping[Work, float], seconds: float | None, device: str, peaks: Peaks
) -> float | None:
    """None where a peak or the time is not known."""
    if not seconds:
        return None
    at_peak = 0.0  # seconds that the device would have needed at its peak
    for key, number in flops.items():
        peak, _ = peaks.peak(device, key.dtype)
        if peak is None:
            return None
        at_peak += number / peak
    return at_peak / seconds


def _reason(device: str, flops: Iterable[Work], peaks: Peaks) -> str:
    unknown = sorted({key.dtype for key in flops if peaks.peak(device, key.dtype)[0] is None})
    if not unknown:
        return "how long the step took is not known"
    name = device or "a device without a name"
    return f"no peak of {name} for {', '.join(unknown)} is known: set peak_tflops"
