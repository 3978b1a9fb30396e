"""Hooks that follow a training step: forward, backward, optimizer, gradient norm, loss, rate.

They use torch's official hooks if there are any, else they replace one attribute of one module. In
a loop that never calls ``set_step``, each step of the first optimizer is a step.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dfx_agent.shim import compiling, meter, recorder, span_writer
from dfx_agent.shim.frames import frames_of, threads_now
from dfx_agent.shim.meter import clock
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.torch import ddp, losses, model_work, optimizers, step_losses
from dfx_agent.wire.records import (
    COUNT,
    COUNTED,
    FORWARD_TOKENS,
    FROM_ATTACH,
    STAGE,
    STEP,
    TOKENS,
)

OPTIMIZER = PatchSet("optimizer")
BACKWARD = PatchSet("backward")
GRAD_NORM = PatchSet("grad_norm")
GRAD_SCALER = PatchSet("grad_scaler")
FSDP1 = PatchSet("fsdp1")

# an optimizer step: its span, its thread, how often ``step`` is on the stack
_Step = tuple[span_writer.OpenSpan | None, int, int]


class _Training:
    """What was seen of the training in this process."""

    def __init__(self) -> None:
        self.has_backward = False
        self.has_details = True
        self.num_steps = 0
        self.step_of_first = 0
        self.has_count = False  # whether the first optimizer counts its own steps
        self.step_code: Any = None  # of torch's wrapper around every optimizer's step
        self.at_work: dict[int, _Step] = {}
        self.news = threading.Event()  # set when there may be models that were not searched yet


seen = _Training()
# hooks on parameters are installed by the training thread: the engine reads them without the GIL
before_next_backward: list[Callable[[], None]] = []


def install() -> None:
    """Install every hook of this file; each one works, or is absent, on its own."""
    losses.begin()
    if not BACKWARD.is_active:
        # attached: in a thread of the guest, while the job may be between two micro-batches
        is_guests = threading.get_ident() != threading.main_thread().ident
        step_losses.begin(is_late=seen.has_backward or is_guests)
    if seen.has_backward:
        seen.news.set()  # look for models again
        optimizers.state.first = None  # read its step count again: it may have increased
    torch_optimizers = sys.modules["torch.optim.optimizer"]
    if OPTIMIZER.state == "off" and getattr(torch_optimizers, "_global_optimizer_pre_hooks", None):
        # there are other hooks: torch may iterate over them right now, in the training thread
        before_next_backward.append(lambda: OPTIMIZER.install(_hook_optimizers))
    else:
        OPTIMIZER.install(_hook_optimizers)
    BACKWARD.install(_patch_backward)
    GRAD_NORM.install(_patch_grad_norm)
    GRAD_SCALER.install(_patch_grad_scaler)
    install_late()


def install_late() -> None:
    """Install hooks in modules that torch does not import itself, if the job has."""
    FSDP1.install(_patch_fsdp1)


def begin_in_child() -> None:
    """Reset a forked child: a thread of the parent may have held the lock of the event."""
    seen.news = threading.Event()
    before_next_backward.clear()


def num_steps() -> int:
    """Number of steps of all optimizers of this process."""
    return seen.num_steps


def num_optimizers() -> int:
    return len(optimizers.living())


def first_parameters() -> set[int]:
    """Identity of one parameter of each optimizer: which models are trained."""
    groups = [optimizer.param_groups[0]["params"] for optimizer, _ in optimizers.living()]
    return {id(parameters[0]) for parameters in groups if parameters}


class _HookSpan:
    """Stands in for a Span in the chain of open spans, whose code reads ``_num_open``."""

    _num_open = 1  # until it is closed


def open_stage(name: str) -> span_writer.OpenSpan | None:
    """Begin a stage from a hook; None if the same one is open, by the job itself as well."""
    return None if compiling.is_compiling() else begin_stage(name)


def begin_stage(name: str) -> span_writer.OpenSpan | None:
    """Begin a stage, for callers that have already checked that torch is not compiling."""
    writer = recorder.current or recorder.active()
    if writer is None or not seen.has_details:
        return None
    if seen.at_work:
        _close_stale()
    outer = span_writer.innermost.get()
    if outer is not None:
        name_id = writer.name_id(name)
        while outer is not None:
            if outer[4] == name_id and outer[0] is writer and outer[1]._num_open:  # noqa: SLF001
                return None
            outer = outer[-1]
    return writer.open(_HookSpan(), name, STAGE)


def close_stage(opened: span_writer.OpenSpan | None, failure: type[BaseException] | None) -> None:
    """End the stage of ``open_stage``."""
    if opened is not None:
        opened[1]._num_open = 0  # noqa: SLF001
        if span_writer.innermost.get() is opened:
            outer = opened[-1]
            while outer is not None and not outer[1]._num_open:  # noqa: SLF001
                outer = outer[-1]  # back to the nearest span that is still open
            span_writer.innermost.set(outer)
        if opened[0] is recorder.current:
            opened[0].close(opened, failure)


def count_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], token_types: tuple[Any, ...]
) -> bool:
    """Count samples and tokens of a trained forward pass; returns whether it has token ids.

    Samples are rows of the first input; none where one row may hold many samples. Token ids are
    the first argument with a dtype of ``token_types``. Nothing is counted if the budget has
    disabled details.
    """
    writer = recorder.current if seen.has_details else None
    given = kwargs.get("input_ids")
    if given is None:
        given = args[0] if args else next(iter(kwargs.values()), None)
    shape = getattr(given, "shape", None)
    is_packed = kwargs and shape and shape[0] == 1 and model_work.says_where_rows_begin(kwargs)
    if shape and writer is not None and not is_packed:
        writer.num_samples += shape[0]
    if token_types:
        for value in (given, *args, *kwargs.values()):
            if getattr(value, "dtype", None) in token_types:
                if writer is not None:
                    writer.write(TOKENS, FORWARD_TOKENS, value.numel())
                return True
    return False


def _scalar(value_name: str, value: Any, optimizer: Any) -> None:
    """Record a rate or norm of the model of ``optimizer``; None stands for the first one's."""
    writer = recorder.current
    if writer is not None and seen.has_details and writer.reads_values:
        if len(optimizers.state.optimizers) < 2 and span_writer.innermost.get() is None:
            name: str | None = f"torch/{value_name}"
        else:
            name = optimizers.name_of(value_name, optimizer)
        if name is not None:
            writer.scalar(name, value, None)


def _hook_optimizers(patches: PatchSet) -> None:
    module = sys.modules["torch.optim.optimizer"]
    switch = patches.switch

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not switch.is_on or compiling.is_compiling():
            return
        begin = meter.is_open and clock()
        try:
            _before_step(optimizer, switch, sys._getframe(1).f_code)  # noqa: SLF001
            if begin:
                meter.spent_ns += clock() - begin
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not compiling.is_compiling():
            begin = meter.is_open and clock()
            try:
                _after_step(optimizer, is_on=switch.is_on)
                if begin:
                    meter.spent_ns += clock() - begin
            except Exception:  # noqa: BLE001 (never into the job)
                recorder.count_error()

    patches.on_restore(_close_all_steps)
    patches.on_restore(module.register_optimizer_step_pre_hook(before).remove)
    patches.on_restore(module.register_optimizer_step_post_hook(after).remove)


def _before_step(optimizer: Any, switch: Switch, caller: Any) -> None:
    """``caller`` is the code that calls the hooks: torch's wrapper around an optimizer's step."""
    if seen.step_code is None:
        seen.step_code = caller
    key = id(optimizer)
    if seen.at_work and _is_again(key):
        return
    seen.at_work[key] = begin_stage("optimizer"), threading.get_ident(), 1
    if not switch.is_on:  # removed meanwhile
        _close_step(key, None)


def _is_again(optimizer_id: int) -> bool:
    """Whether this step was called by the step of a derived class."""
    step = seen.at_work.get(optimizer_id)
    if step is None:
        return False
    if _num_frames(optimizer_id) > 1:
        seen.at_work[optimizer_id] = (*step[:2], step[2] + 1)
        return True
    _close_step(optimizer_id, RuntimeError)
    return False


def _close_step(optimizer_id: int, failure: type[BaseException] | None) -> None:
    step = seen.at_work.pop(optimizer_id, None)
    if step is not None:
        close_stage(step[0], failure)


def _close_all_steps() -> None:
    for optimizer_id in list(seen.at_work):
        _close_step(optimizer_id, None)


def _close_stale() -> None:
    """Close steps that raised: torch calls no post-hook then, but their frames are gone."""
    for optimizer_id in list(seen.at_work):
        if not _num_frames(optimizer_id):
            _close_step(optimizer_id, RuntimeError)


def _num_frames(optimizer_id: int) -> int:
    """How often torch's wrapper around ``step`` is on a stack for this optimizer."""
    num_frames = 0
    for ident in threads_now():
        for frame in frames_of(ident):
            if frame.f_code is seen.step_code:
                num_frames += id(frame.f_locals.get("self")) == optimizer_id
    return num_frames


def _after_step(optimizer: Any, *, is_on: bool) -> None:
    key = id(optimizer)
    step = seen.at_work.get(key)
    if step is not None:
        if step[2] > 1:
            seen.at_work[key] = (*step[:2], step[2] - 1)
            return
        del seen.at_work[key]
        close_stage(step[0], None)
    writer = recorder.current
    outer = seen.at_work and threading.get_ident() in {step[1] for step in seen.at_work.values()}
    if writer is None or not is_on or outer:  # inside another step, which is the one that counts
        return
    seen.num_steps += 1
    entry = optimizers.state.optimizers.get(key)
    if entry is None or entry[0]() is not optimizer:
        optimizers.track(optimizer)
        seen.news.set()
    is_first, is_new = optimizers.is_first(optimizer)
    writer.write(COUNT, "optimizer_steps", 1.0)
    if writer.reads_values and seen.has_details:
        is_alone = optimizers.has_plain_names()
        rate = optimizer.param_groups[0]["lr"]
        if is_alone:
            writer.scalar("torch/lr", rate, None)
        else:
            _scalar("lr", rate, optimizer)
        step_losses.after_step(optimizer, is_alone=is_alone)
    if is_new:  # its own count continues after a resume
        num_done = _steps_done(optimizer)
        seen.has_count = num_done > 0
        seen.step_of_first = max(seen.step_of_first, num_done - 1)
    if is_first:
        seen.step_of_first += 1
        if not writer.has_explicit_steps:
            is_guess = writer.is_attached and not seen.has_count
            kind = STEP | COUNTED | (FROM_ATTACH if is_guess else 0)
            writer.begin_step(seen.step_of_first + 1, kind)


def _steps_done(optimizer: Any) -> int:
    """Steps that the optimizer itself has counted, including this one; 0 if it does not count."""
    for state in optimizer.state.values():
        count = state.get("step", 0) if isinstance(state, dict) else 0
        if getattr(getattr(count, "device", None), "type", "cpu") == "cpu":
            return max(0, int(count))
        break
    return 0


def _patch_backward(patches: PatchSet) -> None:
    patches.replace(sys.modules["torch.autograd"], "backward", _backward_wrapper)
    parallel = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    if parallel is not None:  # compiled ones are found in their constructor or not at all
        patches.replace(parallel, "__init__", _init_wrapper)


def _backward_wrapper(original: Any, switch: Switch) -> Any:
    graph_task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", lambda: -1)  # noqa: SLF001

    def backward(*args: Any, **kwargs: Any) -> Any:
        # a backward inside another one (recomputing checkpoints) is part of it
        if not switch.is_on or compiling.is_compiling() or graph_task() != -1:
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


def _init_wrapper(original: Any, switch: Switch) -> Any:
    def __init__(module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(module, *args, **kwargs)
        if switch.is_on:
            replica = weakref.ref(module)
            before_next_backward.append(lambda: ddp.watch(replica()))

    return __init__


def _begin_backward() -> span_writer.OpenSpan | None:
    begin, opened = meter.is_open and clock(), None
    try:
        if not seen.has_backward:
            seen.has_backward = True
            seen.news.set()
        for _ in range(len(before_next_backward)):
            before_next_backward.pop(0)()
        for replica in ddp.replicas:
            replica.begin()
        writer = recorder.current
        if writer is not None and writer.reads_values and seen.has_details:
            step_losses.before_backward()
        opened = begin_stage("backward")
        if begin:
            meter.spent_ns += clock() - begin
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()
    return opened


def _end_backward(
    opened: span_writer.OpenSpan | None, failure: type[BaseException] | None, args: tuple[Any, ...]
) -> None:
    begin = meter.is_open and clock()
    try:
        if ddp.replicas:
            ddp.after_backward(has_failed=failure is not None)
        if model_work.state.pending and failure is None:
            model_work.after_backward()
        close_stage(opened, failure)
        writer = recorder.current
        if writer is not None and failure is None:
            writer.write(COUNT, "micro_batches", 1.0)
            if writer.reads_values and seen.has_details:
                step_losses.after_backward(_loss_of(args[0]) if args else None)
        if begin:
            meter.spent_ns += clock() - begin
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _loss_of(tensor: Any) -> Any:
    """The loss of a backward: a float, or a tensor on a device; None if it is unknown."""
    if getattr(tensor, "ndim", 1) != 0:
        return None
    if losses.state.is_doubtful or type(tensor) is not sys.modules["torch"].Tensor:
        tensor = losses.given_for(tensor)
    if tensor is None:
        return None
    return float(tensor.item()) if tensor.is_cpu else tensor.detach()


def _patch_grad_norm(patches: PatchSet) -> None:
    """Record the norm before clipping, wherever torch computes it."""
    module, package = sys.modules["torch.nn.utils.clip_grad"], sys.modules["torch.nn.utils"]
    if hasattr(module, "_get_total_norm"):
        patches.replace(module, "_get_total_norm", _norm_wrapper)
        patches.replace(package, "get_total_norm", _norm_wrapper)
    else:  # torch < 2.6
        patches.replace(module, "clip_grad_norm_", _norm_wrapper)
        patches.replace(package, "clip_grad_norm_", _norm_wrapper)


def _patch_fsdp1(patches: PatchSet) -> None:
    package = sys.modules.get("torch.distributed.fsdp")
    fsdp = getattr(package, "FullyShardedDataParallel", None)
    if fsdp is not None:
        patches.replace(fsdp, "clip_grad_norm_", _norm_wrapper)
    scaler = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    if scaler is not None:
        patches.replace(scaler.ShardedGradScaler, "scale", losses.scale_wrapper)


def _norm_wrapper(original: Any, switch: Switch) -> Any:
    takes_gradients = "total_norm" in original.__name__

    def total_norm(*args: Any, **kwargs: Any) -> Any:
        try:
            norm = original(*args, **kwargs)
        except RuntimeError as error:
            if not compiling.is_compiling() and switch.is_on and "non-finite" in str(error):
                _count_nonfinite()
            raise
        if switch.is_on and not compiling.is_compiling():
            begin = meter.is_open and clock()
            _note_norm(norm, args[0] if takes_gradients and args else None)
            if begin:
                meter.spent_ns += clock() - begin
        return norm

    return total_norm


def _count_nonfinite() -> None:
    if recorder.current is not None:
        recorder.current.count("nonfinite_gradients", 1.0)


def _note_norm(norm: Any, tensors: Any) -> None:
    try:
        owner, may_report = None, True
        if isinstance(tensors, (list, tuple)) and tensors:
            if tensors[0].requires_grad:
                return  # a norm of parameters
            match = optimizers.state.last_match
            if match is not None and getattr(match[0](), "grad", None) is tensors[0]:
                owner = match[1]()
            else:
                owner, may_report = optimizers.owner_of(tensors[0])
        if hasattr(norm, "placements"):
            norm = losses.whole(norm)
            if norm is None:
                return
        if norm.is_cpu:
            norm = norm.item()
            if not math.isfinite(norm):
                _count_nonfinite()
        else:
            norm = norm.detach()
        if may_report:
            _scalar("grad_norm", norm, owner)
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _patch_grad_scaler(patches: PatchSet) -> None:
    scaler = getattr(sys.modules.get("torch.amp.grad_scaler"), "GradScaler", None)
    if scaler is not None:
        patches.replace(scaler, "_maybe_opt_step", _scaler_step_wrapper)
        patches.replace(scaler, "scale", losses.scale_wrapper)


def _scaler_step_wrapper(original: Any, switch: Switch) -> Any:
    def step(*args: Any, **kwargs: Any) -> Any:
        before = seen.num_steps
        result = original(*args, **kwargs)
        writer = recorder.current
        has_step = seen.num_steps != before or not OPTIMIZER.is_active
        if switch.is_on and writer is not None and not has_step:
            writer.count("skipped_updates", 1.0)
            step_losses.after_step(args[1], is_alone=optimizers.has_plain_names())
        return result

    return step
