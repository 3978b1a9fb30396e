"""Counts model FLOPs of this process, by stage.

Each model has one hook, in addition to those of ``modules.py``. A pass adds its FLOPs to the
outermost open stage. A backward adds those of the earlier passes that are trained. ``Recorder``
writes the sums at the end of the step, as counts "flops/<way>/<dtype>/<stage>".

Models that are not trained (reference, rollout) are found in the stages that the job marks: the
guest listens to the first calls in the first two occurrences of each stage.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from dfx_agent.shim import compiling, meter, recorder, span_writer
from dfx_agent.shim.meter import clock
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.torch import model_flops
from dfx_agent.shim.torch.model_flops import ModelFlops
from dfx_agent.wire import job_description
from dfx_agent.wire.records import STAGE

WORK = PatchSet("flops", is_optional=True)

PREFIX = "flops"
_MAX_MODELS = 8
_MAX_CALLS = 2_000  # of all modules, listened to in a stage: 4 ms
_MAX_VISITS = 2  # occurrences of one stage
_MAX_BEGINS = 500  # of stages: models that were not called by then stay unknown
_MAX_PLANS = 512
# arguments whose value, and not only their type, determines the FLOPs
_VALUES = frozenset({"logits_to_keep", "max_length_q", "max_seqlen"})
_OF_HOOKS = frozenset({"forward", "backward", "optimizer"})  # stages inside models


class _WorkState:
    """What is counted in this process."""

    def __init__(self) -> None:
        self.asked: weakref.WeakSet[Any] = weakref.WeakSet()  # roots, possibly wrapped
        self.hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self.models: list[ModelFlops] = []  # in the order of their first calls
        # FLOPs of trained passes that no backward has processed yet, by dtype
        self.pending: dict[str, float] = {}
        self.writer: recorder.Recorder | None = None
        # (way, dtype, id of the stage's name) -> name of the counter
        self.names: dict[tuple[str, str, int], str] = {}
        self.listener: _StageListener | None = None
        self.has_listened = False


state = _WorkState()


def count(module: Any) -> None:
    """Count the passes of this model from now on; called in the training thread."""
    state.asked.add(module)
    core = model_flops.core_of(module)
    if core in state.hooked or len(state.models) >= _MAX_MODELS or _overlaps(core):
        return
    model = model_flops.read(core)

    def change(patches: PatchSet) -> None:
        state.hooked.add(core)
        state.models.append(model)
        hook = _BeforePass(patches.switch, core, model)
        patches.on_restore(core.register_forward_pre_hook(hook, with_kwargs=True).remove)
        patches.on_restore(hook.leave_stage)
        patches.on_restore(_forget)

    if WORK.is_active:
        change(WORK)
    else:
        WORK.install(change)
    if core in state.hooked:
        _report_model(model, core)


def listen(may_listen: Callable[[], bool]) -> None:
    """Start to find the models of stages; called in the training thread."""
    writer = recorder.current
    if writer is not None and WORK.is_active and state.listener is None and not state.has_listened:
        state.has_listened = True
        state.listener = _StageListener(threading.get_ident(), may_listen)
        writer.on_stage = state.listener.on_stage


def _overlaps(core: Any) -> bool:
    """Whether it contains a counted model, or is a part of one: nothing is counted twice."""
    inside = {id(module) for module in core.modules()}
    hooked = list(state.hooked)
    if any(id(other) in inside for other in hooked):
        return True
    return any(core is module for other in hooked for module in other.modules())


def _forget() -> None:
    state.has_listened = False
    state.asked.clear()
    state.hooked.clear()
    state.models.clear()
    state.pending.clear()
    if state.listener is not None:
        state.listener.leave()


def after_backward() -> None:
    """Add the FLOPs of a backward that has finished.

    FLOPs that remain from a step in which FLOPs are counted are dropped in a step without counting.
    """
    if state.pending and recorder.current is not None:
        held, state.pending = state.pending, {}
        for dtype, flops in held.items() if recorder.current.counts_work else ():
            _add(recorder.current, "backward", dtype, flops)


class _Plan(NamedTuple):
    """FLOPs of a repeated pass: a constant for its own tokens, and more per cached token."""

    dtype: str
    forward: float
    backward: float
    """0.0 if nothing will be trained."""
    forward_of_cached: float
    backward_of_cached: float
    cache_at: int | str | None
    """Position or name of the argument that is the KV cache; None if there is none."""


class _BeforePass:
    """Pre-hook of a model. A copied or pickled model has a function without effect in its place.

    A pass with arguments of the same shapes and types as before costs a lookup, as a rollout calls
    this for every token. Any other pass is counted in ``_read``.
    """

    def __init__(self, switch: Switch, core: Any, model: ModelFlops) -> None:
        torch = sys.modules["torch"]
        self._switch = switch
        self._model = model
        self._dtype = _dtype_of(core)
        self._is_trained = torch.is_grad_enabled
        self._is_autocast = torch.is_autocast_enabled
        self._autocast_dtype = torch.get_autocast_dtype
        self._token_types = torch.int64, torch.int32
        self._device = "cpu"  # device type of the latest tokens
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        # the counters in use, for this writer, open span and thread; by dtype
        self._writer: recorder.Recorder | None = None
        self._opened: span_writer.OpenSpan | None = None
        self._thread = 0
        self._places: dict[str, tuple[str, int]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __call__(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        writer = recorder.current
        if writer is None or not writer.counts_work or not self._switch.is_on:
            return
        if compiling.is_compiling():
            return
        begin = meter.is_open and clock()
        try:  # uses few functions: they have left the CPU caches
            first, device = args[0] if args else kwargs.get("input_ids"), self._device
            key = (
                getattr(first, "shape", None), getattr(first, "dtype", None), self._is_trained(),
                self._autocast_dtype(device) if self._is_autocast(device) else None,
                *map(type, args), *kwargs, *map(type, kwargs.values()),
            )  # fmt: skip
            plan = self._plans.get(key) or self._read(key, args, kwargs)
            if plan is None:
                return
            dtype, forward, backward, of_cached, backward_of_cached, at = plan
            if at is not None:
                cache = args[at] if isinstance(at, int) else kwargs[at]
                num_cached = cache.get_seq_length()
                forward += of_cached * num_cached
                backward += backward_of_cached * num_cached
            opened, thread = span_writer.innermost.get(), threading.get_ident()
            is_elsewhere = opened is not self._opened or thread != self._thread
            if is_elsewhere or writer is not self._writer:
                self._writer, self._opened, self._thread = writer, opened, thread
                self._places = {}
            place = self._places.get(dtype)
            if place is None:
                place = self._places[dtype] = _place(writer, "forward", dtype)
            work = writer.work
            work[place] = work.get(place, 0.0) + forward
            if backward:
                state.pending[dtype] = state.pending.get(dtype, 0.0) + backward
            if begin:
                meter.spent_ns += clock() - begin
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()

    def leave_stage(self) -> None:
        """Release the references to the span and the writer."""
        self._writer, self._opened, self._places = None, None, {}

    def _read(
        self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Plan | None:
        """Compute a plan from shapes; cache it unless the value of an argument may differ."""
        model, tokens = self._model, self._tokens(args, kwargs)
        if model.reason or tokens is None:
            return None
        device, known_device = tokens.device.type, self._device
        if device == "meta":  # shapes are computed, nothing is multiplied
            return None
        is_autocast, self._device = self._is_autocast(device), device
        is_rows = tokens.dtype not in self._token_types
        shape = tokens.shape[:-1] if is_rows else tokens.shape
        num_tokens, length = float(prod(shape)), shape[-1] if len(shape) else 1
        at = _cache_at(args, kwargs)
        context = float(length)
        if num_tokens == length > 1 and says_where_rows_begin(kwargs):
            at, context = None, _longest_row(kwargs)
        dtype = self._dtype
        if is_autocast:
            dtype = _name_of(self._autocast_dtype(device))
        pairs, spared = num_tokens * context, _spared(kwargs, num_tokens, length)
        forward = model.forward_of_token * num_tokens + model.forward_of_pair * pairs
        forward -= model.forward_of_head * spared
        backward = backward_of_cached = 0.0
        if model.num_trained and self._is_trained():
            backward = model.backward_of_token * num_tokens + model.backward_of_pair * pairs
            backward -= model.backward_of_head * spared
            backward_of_cached = model.backward_of_pair * num_tokens
        of_cached = model.forward_of_pair * num_tokens
        plan = _Plan(dtype, forward, backward, of_cached, backward_of_cached, at)
        first = args[0] if args else kwargs.get("input_ids")
        is_of_key = tokens is first and device == known_device  # the key contains its autocast
        if is_of_key and (length == 1 or kwargs.keys().isdisjoint(_VALUES)):
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _tokens(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The token ids: the first integer argument, else the first rows of features."""
        tokens, rows = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
        if tokens is not None:
            return tokens
        for value in (*args, *kwargs.values()):
            if getattr(value, "dtype", None) in self._token_types:
                return value
            if rows is None and not self._model.num_attentions and getattr(value, "ndim", 0) > 1:
                rows = value
        return rows


def _longest_row(kwargs: dict[str, Any]) -> float:
    """Number of tokens that each token attends to in a packed batch without padding.

    Rows attend only within themselves. 0.0 if the job does not pass the longest length.
    """
    longest = kwargs.get("max_length_q", kwargs.get("max_seqlen", 0))
    return float(longest) if type(longest) is int else 0.0


def _spared(kwargs: dict[str, Any], num_tokens: float, length: int) -> float:
    """Tokens that skip the head; the last tokens of each row do not, and none do if that is 0."""
    num_logits = kwargs.get("logits_to_keep")
    if type(num_logits) is not int or not 0 < num_logits < length:
        return 0.0
    return num_tokens * (length - num_logits) / length


def says_where_rows_begin(kwargs: dict[str, Any]) -> bool:
    """Whether one row of the batch may hold many samples, as packed batches do."""
    if kwargs.get("cu_seq_lens_q") is not None or kwargs.get("cu_seqlens") is not None:
        return True
    return kwargs.get("position_ids") is not None and kwargs.get("attention_mask") is None


def _cache_at(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str | None:
    """The argument with keys and values of earlier tokens, such as a cache of transformers."""
    if hasattr(kwargs.get("past_key_values"), "get_seq_length"):
        return "past_key_values"
    for at, value in enumerate(args):
        if hasattr(value, "get_seq_length"):
            return at
    return next((at for at, value in kwargs.items() if hasattr(value, "get_seq_length")), None)


def _add(writer: recorder.Recorder, way: str, dtype: str, flops: float) -> None:
    """Add to the counter of the current stage."""
    place, work = _place(writer, way, dtype), writer.work
    work[place] = work.get(place, 0.0) + flops


def _place(writer: recorder.Recorder, way: str, dtype: str) -> tuple[str, int]:
    """Counter of the outermost stage that is open in this context; "" stands for no stage."""
    opened, outermost = span_writer.innermost.get(), 0
    while opened is not None:
        if opened[0] is writer and opened[5] == STAGE and opened[1]._num_open:  # noqa: SLF001
            outermost = opened[4]
        opened = opened[-1]
    if writer is not state.writer:
        state.writer, state.names = writer, {}
    kind = way, dtype, outermost
    name = state.names.get(kind)
    if name is None:
        name = state.names[kind] = f"{PREFIX}/{way}/{dtype}/{writer.name_of(outermost)}"
    return name, threading.get_ident()


def _dtype_of(core: Any) -> str:
    """Type of the numbers that are multiplied, without autocast."""
    ask = getattr(core, "_get_fsdp_state", None)  # FSDP2 shards in one type, computes in another
    policy = getattr(ask(), "_mp_policy", None) if ask is not None else None
    wanted = getattr(policy, "param_dtype", None)
    largest = max(core.parameters(), key=lambda p: p.numel(), default=None)
    dtype = wanted or getattr(largest, "dtype", None)
    torch = sys.modules["torch"]
    is_on_cuda = getattr(getattr(largest, "device", None), "type", "") == "cuda"
    if dtype is torch.float32 and is_on_cuda and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return _name_of(dtype)


def _name_of(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def _report_model(model: ModelFlops, core: Any) -> None:
    """Add the model and the device that computes it to the name table."""
    writer = recorder.current
    if writer is None:
        return
    first = next(core.parameters(), None)
    device = getattr(first, "device", None)
    kind = getattr(device, "type", "")
    name = ""
    if kind == "cuda":  # torch knows it without asking the device
        name = str(sys.modules["torch"].cuda.get_device_name(device))
    elif kind and kind != "cpu":
        ask = getattr(getattr(sys.modules["torch"], kind, None), "get_device_name", None)
        name = str(ask(device.index)) if ask is not None else ""  # type: ignore[union-attr]
    writer.add_description(job_description.format_compute(kind, name))
    writer.add_description(
        job_description.format_model(
            model.name, model.num_parameters, model.num_trained, model.num_attentions,
            model.reason, model.uncounted,
        )
    )  # fmt: skip


class _StageListener:
    """Finds models that no optimizer knows: the first modules that stages call."""

    def __init__(self, thread: int, may_listen: Callable[[], bool]) -> None:
        self._thread, self._may_listen = thread, may_listen
        self._visits: dict[str, int] = {}
        self._handle: Any = None
        self._called: dict[int, weakref.ref[Any]] = {}
        self._num_calls = self._num_begins = 0

    def on_stage(self, name: str) -> None:
        """Note the begin of a stage, in any thread, and maybe listen to it; never raises."""
        is_done = self._visits.get(name, 0) >= _MAX_VISITS
        if is_done and self._handle is None and self._num_begins < _MAX_BEGINS:
            self._num_begins += 1
            return
        if threading.get_ident() == self._thread and name not in _OF_HOOKS:
            try:
                self._begin_visit(name)
            except Exception:  # noqa: BLE001 (never into the job)
                recorder.count_error()
                self.leave()

    def _begin_visit(self, name: str) -> None:
        self._end_visit()
        self._num_begins += 1
        if self._num_begins > _MAX_BEGINS or not WORK.is_active:
            self.leave()
            return
        visits = self._visits.get(name, 0)
        if visits < _MAX_VISITS and self._may_listen():
            self._visits[name] = visits + 1
            self._num_calls = 0
            register = sys.modules["torch.nn.modules.module"].register_module_forward_pre_hook
            self._handle = register(self._on_call)

    def _on_call(self, module: Any, _args: Any) -> None:
        try:
            if threading.get_ident() != self._thread or compiling.is_compiling():
                return
            self._num_calls += 1
            if id(module) not in self._called:
                self._called[id(module)] = weakref.ref(module)
            if self._num_calls >= _MAX_CALLS:
                self._remove()
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()

    def _end_visit(self) -> None:
        self._remove()
        called = [module for ref in self._called.values() if (module := ref()) is not None]
        self._called = {}
        for module in _outer(called):
            count(module)

    def _remove(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def leave(self) -> None:
        """Remove all hooks of this listener."""
        self._remove()
        writer = recorder.current
        if writer is not None and writer.on_stage == self.on_stage:
            writer.on_stage = None
        if state.listener is self:
            state.listener = None


def _outer(called: list[Any]) -> Iterator[Any]:
    """Modules with parameters that are inside no other one, in the order of their calls."""
    inner: set[int] = set()
    for module in called:
        if id(module) not in inner:
            inner.update(id(child) for child in module.modules())
            if next(module.parameters(), None) is not None:
                yield module
