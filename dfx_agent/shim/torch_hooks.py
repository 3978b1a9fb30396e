"""What torch itself tells about a step: forward, backward, optimizer, gradient norm, loss, rate.

Official hooks where torch has them, else one attribute of one module (hooks.md section 4). A loop
that never calls ``set_step`` gets a step per step of its first optimizer.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dfx_agent.shim import compiling, ddp, recorder
from dfx_agent.shim.patches import PatchSet
from dfx_agent.wire.records import STAGE

OPTIMIZER = PatchSet("optimizer")
BACKWARD = PatchSet("backward")
GRAD_NORM = PatchSet("grad_norm")
GRAD_SCALER = PatchSet("grad_scaler")

# stages of RL trainers that tell the models of one process apart
_MODEL_OF_STAGE = {"actor_update": "actor", "critic_update": "critic"}


class _Optimizers:
    """What was seen of this process' optimizers."""

    def __init__(self) -> None:
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()
        self.has_backward = False
        self.num_steps = 0
        self.first: weakref.ref[Any] | None = None
        self.step_of_first = 0
        self.opened: recorder.OpenSpan | None = None


_seen = _Optimizers()
news = threading.Event()  # models may be there that nobody has looked for
# hooks on parameters are put in by the thread that trains: the engine reads them without the GIL
before_next_backward: list[Callable[[], None]] = []


def install() -> None:
    """Install every hook of this file; each works, or is absent, on its own."""
    OPTIMIZER.install(_hook_optimizers)
    BACKWARD.install(_patch_backward)
    GRAD_NORM.install(_patch_grad_norm)
    GRAD_SCALER.install(_patch_grad_scaler)


def open_stage(name: str) -> recorder.OpenSpan | None:
    """Begin a stage from a hook; None where the job has opened the same one itself."""
    writer = recorder.current or recorder.active()
    if writer is None or compiling.is_compiling():
        return None
    outer = recorder.innermost.get()
    if outer is not None and outer[0] is writer and outer[4] == writer.name_id(name):
        return None
    return writer.open(_OWNER, name, STAGE)


def close_stage(opened: recorder.OpenSpan | None, failure: type[BaseException] | None) -> None:
    """End what ``open_stage`` began."""
    if opened is not None:
        if recorder.innermost.get() is opened:
            outer = opened[-1]
            while outer is not None and not outer[1]._num_open:  # noqa: SLF001
                outer = outer[-1]  # back to the nearest span that is still open
            recorder.innermost.set(outer)
        if opened[0] is recorder.current:
            opened[0].close(opened, failure)


class _Owner:
    """Stands for a Span in the chain of open spans; the chain's walkers read ``_num_open``."""

    _num_open = 1


_OWNER = _Owner()


def _model() -> str:
    """Name of the model at work, from the stage around; "" where none tells."""
    opened = recorder.innermost.get()
    while opened is not None:
        for stage, model in _MODEL_OF_STAGE.items():
            if opened[4] == opened[0].name_id(stage):
                return model
        opened = opened[-1]
    return ""


def _scalar(name: str, value: Any) -> None:
    writer = recorder.current
    if writer is not None:
        model = _model()
        writer.scalar(f"torch/{model}/{name}" if model else f"torch/{name}", value, None)


def _hook_optimizers(patches: PatchSet) -> None:
    module = sys.modules["torch.optim.optimizer"]
    patches.on_restore(module.register_optimizer_step_pre_hook(_before_step).remove)
    patches.on_restore(module.register_optimizer_step_post_hook(_after_step).remove)


def _before_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    try:
        if _seen.opened is not None:  # its step raised: torch calls no hook then
            close_stage(_seen.opened, RuntimeError)
        _seen.opened = open_stage("optimizer")
    except Exception:  # noqa: BLE001 (never into the job)
        _count_error()


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    try:
        opened, _seen.opened = _seen.opened, None
        close_stage(opened, None)
        writer = recorder.current
        if writer is None or compiling.is_compiling():
            return
        _seen.num_steps += 1
        if optimizer not in _seen.known:
            _seen.known.add(optimizer)
            news.set()
        writer.count("optimizer_steps", 1)
        _scalar("lr", optimizer.param_groups[0]["lr"])
        if not writer.has_explicit_steps:
            _begin_next_step(writer, optimizer)
    except Exception:  # noqa: BLE001 (never into the job)
        _count_error()


def _begin_next_step(writer: recorder.Recorder, optimizer: Any) -> None:
    """A step of the first optimizer is a training step; its own count goes on after a resume."""
    first = _seen.first() if _seen.first else None
    if first is None:
        _seen.first, _seen.step_of_first = weakref.ref(optimizer), _steps_done(optimizer) - 1
        first = optimizer
    if first is optimizer:
        _seen.step_of_first += 1
        writer.begin_step(_seen.step_of_first + 1)


def _steps_done(optimizer: Any) -> int:
    """Steps that the optimizer itself has counted, this one included; 1 when it does not."""
    for state in optimizer.state.values():
        count = state.get("step", 1) if isinstance(state, dict) else 1
        if getattr(getattr(count, "device", None), "type", "cpu") == "cpu":
            return max(1, int(count))
        break
    return 1


def _patch_backward(patches: PatchSet) -> None:
    patches.replace(sys.modules["torch.autograd"], "backward", _backward_wrapper)


def _backward_wrapper(original: Any) -> Any:
    def backward(*args: Any, **kwargs: Any) -> Any:
        if not BACKWARD.is_active or compiling.is_compiling():
            return original(*args, **kwargs)
        opened = _begin_backward()
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _end_backward(opened, type(error), args)
            raise
        _end_backward(opened, None, args)
        return result

    return backward


def _begin_backward() -> recorder.OpenSpan | None:
    try:
        if not _seen.has_backward:
            _seen.has_backward = True
            news.set()
        while before_next_backward:
            before_next_backward.pop()()
        ddp.before_backward()
        return open_stage("backward")
    except Exception:  # noqa: BLE001 (never into the job)
        _count_error()
        return None


def _end_backward(
    opened: recorder.OpenSpan | None, failure: type[BaseException] | None, args: tuple[Any, ...]
) -> None:
    try:
        ddp.after_backward(has_failed=failure is not None)
        close_stage(opened, failure)
        writer = recorder.current
        if writer is not None:
            writer.count("micro_batches", 1)
            if failure is None and args and getattr(args[0], "ndim", 1) == 0:
                _scalar("loss", args[0].detach())
    except Exception:  # noqa: BLE001 (never into the job)
        _count_error()


def _patch_grad_norm(patches: PatchSet) -> None:
    """The norm before clipping, wherever torch computes it."""
    module = sys.modules["torch.nn.utils.clip_grad"]
    if hasattr(module, "_get_total_norm"):
        patches.replace(module, "_get_total_norm", _norm_wrapper)
    else:  # torch < 2.6
        patches.replace(module, "clip_grad_norm_", _norm_wrapper)
        sys.modules["torch.nn.utils"].clip_grad_norm_ = module.clip_grad_norm_  # type: ignore[attr-defined]
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if fsdp is not None:
        patches.replace(fsdp.FullyShardedDataParallel, "clip_grad_norm_", _norm_wrapper)


def _norm_wrapper(original: Any) -> Any:
    def total_norm(*args: Any, **kwargs: Any) -> Any:
        norm = original(*args, **kwargs)
        if GRAD_NORM.is_active and not compiling.is_compiling():
            _note_norm(norm)
        return norm

    return total_norm


def _note_norm(norm: Any) -> None:
    try:
        placements = getattr(norm, "placements", None)
        if placements is not None:  # a DTensor: its local part is the norm only when replicated
            if not all(placement.is_replicate() for placement in placements):
                return
            norm = norm._local_tensor  # noqa: SLF001 (full_tensor would be a collective)
        norm = norm.detach()
        if norm.device.type == "cpu":
            norm = float(norm)
            if not math.isfinite(norm) and recorder.current is not None:
                recorder.current.count("nonfinite_gradients", 1)
        _scalar("grad_norm", norm)
    except Exception:  # noqa: BLE001 (never into the job)
        _count_error()


def _patch_grad_scaler(patches: PatchSet) -> None:
    scaler = getattr(sys.modules.get("torch.amp.grad_scaler"), "GradScaler", None)
    if scaler is not None:
        patches.replace(scaler, "step", _scaler_step_wrapper)


def _scaler_step_wrapper(original: Any) -> Any:
    def step(*args: Any, **kwargs: Any) -> Any:
        before = _seen.num_steps
        result = original(*args, **kwargs)
        writer = recorder.current
        if GRAD_SCALER.is_active and writer is not None and _seen.num_steps == before:
            writer.count("skipped_updates", 1)
        return result

    return step


def _count_error() -> None:
    if recorder.current is not None:
        recorder.current.count_error()
