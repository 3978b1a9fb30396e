"""Model FLOPs that this process does, by stage: what each pass of a model multiplies.

One hook on each model, beside those of ``modules.py``. A pass adds its FLOPs to the outermost open
stage, a backward those of the passes before it that were to be trained; ``Recorder`` tells the sums
at the end of the step, as counts "flops/<way>/<type of numbers>/<stage>".

A model that is not trained (reference, rollout) is met in the stages that the job marks: of the
first two visits to each stage the first calls are listened to.
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
_MOST_MODELS = 8
_MOST_CALLS = 2_000  # of all modules, listened to in a stage: 4 ms
_MOST_VISITS = 2
_MOST_BEGINS = 500  # of stages: who has not been met by then stays unknown
_MOST_PLANS = 512
# arguments whose value, and not only their type, says how much is multiplied
_VALUES = frozenset({"logits_to_keep", "max_length_q", "max_seqlen"})
_OF_HOOKS = frozenset({"forward", "backward", "optimizer"})  # stages inside models


class _State:
    """Of this process."""

    def __init__(self) -> None:
        self.asked: weakref.WeakSet[Any] = weakref.WeakSet()  # roots, wrapped as they may be
        self.hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self.models: list[ModelFlops] = []  # in the order in which they were met
        # of trained passes that no backward has gone back through yet, by type of numbers
        self.pending: dict[str, float] = {}
        self.writer: recorder.Recorder | None = None
        # by way, type of numbers and id of a stage's name: what is counted
        self.names: dict[tuple[str, str, int], str] = {}
        self.listener: _StageListener | None = None
        self.has_listened = False


state = _State()


def count(module: Any) -> None:
    """Count what passes of this model do, from now on; in the thread that trains."""
    state.asked.add(module)
    core = model_flops.core_of(module)
    if core in state.hooked or len(state.models) >= _MOST_MODELS or _overlaps(core):
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
        _tell(model, core)


def listen(may_listen: Callable[[], bool]) -> None:
    """Meet the models of stages; in the thread that trains."""
    writer = recorder.current
    if writer is not None and WORK.is_active and state.listener is None and not state.has_listened:
        state.has_listened = True
        state.listener = _StageListener(threading.get_ident(), may_listen)
        writer.on_stage = state.listener.on_stage


def _overlaps(core: Any) -> bool:
    """Whether it holds a model that is counted, or is a part of one: nothing counts twice."""
    inside = {id(module) for module in core.modules()}
    known = list(state.hooked)
    if any(id(other) in inside for other in known):
        return True
    return any(core is module for other in known for module in other.modules())


def _forget() -> None:
    state.has_listened = False
    state.asked.clear()
    state.hooked.clear()
    state.models.clear()
    state.pending.clear()
    if state.listener is not None:
        state.listener.leave()


def after_backward() -> None:
    """One has gone through: what was to be trained has its gradients.

    What is left of a step in which FLOPs were counted does not count in one in which they are not.
    """
    if state.pending and recorder.current is not None:
        held, state.pending = state.pending, {}
        for dtype, flops in held.items() if recorder.current.counts_work else ():
            _add(recorder.current, "backward", dtype, flops)


class _Plan(NamedTuple):
    """FLOPs of a pass that repeats: of its own tokens, and more for each token in its cache.

    ``cache_at``: which argument is that cache, by position or name; None where there is none.
    """

    dtype: str
    forward: float
    backward: float  # 0.0 where nothing will be trained
    forward_of_cached: float
    backward_of_cached: float
    cache_at: int | str | None


class _BeforePass:
    """Pre-hook of a model; it is copied and saved with the model as a function without effect.

    A pass with arguments of the same shapes and types as an earlier one costs a lookup: a rollout
    calls this for every token. Any other is counted in ``_read``.
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
        self._device = "cpu"  # type of the device of the latest tokens
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        # where passes are counted now: of which writer, span and thread; then by type of numbers
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
        try:  # in few functions: each runs cold
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
        """Keep no span and no writer alive."""
        self._writer, self._opened, self._places = None, None, {}

    def _read(
        self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Plan | None:
        """From shapes alone; cached by key unless the value of an argument may differ."""
        model, tokens = self._model, self._tokens(args, kwargs)
        if model.reason or tokens is None:
            return None
        device, known_device = tokens.device.type, self._device
        if device == "meta":  # sizes are asked for, nothing is multiplied
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
        is_of_key = tokens is first and device == known_device  # the key asked for autocast on it
        if is_of_key and (length == 1 or kwargs.keys().isdisjoint(_VALUES)):
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _tokens(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The ids of tokens: the first integers, else the first rows of features."""
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
    """How many tokens each attends to where rows follow one another, without padding, in one.

    They attend within themselves: 0.0 where the job does not say how long the longest is.
    """
    longest = kwargs.get("max_length_q", kwargs.get("max_seqlen", 0))
    return float(longest) if type(longest) is int else 0.0


def _spared(kwargs: dict[str, Any], num_tokens: float, length: int) -> float:
    """Tokens that do not go through the head; the last of each row do, all where that is 0."""
    kept = kwargs.get("logits_to_keep")
    if type(kept) is not int or not 0 < kept < length:
        return 0.0
    return num_tokens * (length - kept) / length


def says_where_rows_begin(kwargs: dict[str, Any]) -> bool:
    if any(kwargs.get(name) is not None for name in ("cu_seq_lens_q", "cu_seqlens")):
        return True
    return kwargs.get("position_ids") is not None and kwargs.get("attention_mask") is None


def _cache_at(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str | None:
    """Which argument holds keys and values of the tokens before these, as transformers' caches."""
    if hasattr(kwargs.get("past_key_values"), "get_seq_length"):
        return "past_key_values"
    for at, value in enumerate(args):
        if hasattr(value, "get_seq_length"):
            return at
    return next((at for at, value in kwargs.items() if hasattr(value, "get_seq_length")), None)


def _add(writer: recorder.Recorder, way: str, dtype: str, flops: float) -> None:
    """Where the passes of this context are counted now."""
    place, work = _place(writer, way, dtype), writer.work
    work[place] = work.get(place, 0.0) + flops


def _place(writer: recorder.Recorder, way: str, dtype: str) -> tuple[str, int]:
    """Count of the outermost stage that is open in this context; "" where none is."""
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


def _tell(model: ModelFlops, core: Any) -> None:
    """What was met, and which device computes it, into the table of names."""
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
    writer.say(job_description.format_compute(kind, name))
    writer.say(
        job_description.format_model(
            model.name, model.num_parameters, model.num_trained, model.num_attentions,
            model.reason, model.uncounted,
        )
    )  # fmt: skip


class _StageListener:
    """Which modules the stages call first: models that no optimizer knows."""

    def __init__(self, thread: int, may_listen: Callable[[], bool]) -> None:
        self._thread, self._may_listen = thread, may_listen
        self._visits: dict[str, int] = {}
        self._handle: Any = None
        self._called: dict[int, weakref.ref[Any]] = {}
        self._num_calls = self._num_begins = 0

    def on_stage(self, name: str) -> None:
        """A stage begins, in whatever thread; never raises."""
        is_known = self._visits.get(name, 0) >= _MOST_VISITS
        if is_known and self._handle is None and self._num_begins < _MOST_BEGINS:
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
        if self._num_begins > _MOST_BEGINS or not WORK.is_active:
            self.leave()
            return
        visits = self._visits.get(name, 0)
        if visits < _MOST_VISITS and self._may_listen():
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
            if self._num_calls >= _MOST_CALLS:
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
        """No hook of ours is left."""
        self._remove()
        writer = recorder.current
        if writer is not None and writer.on_stage == self.on_stage:
            writer.on_stage = None
        if state.listener is self:
            state.listener = None


def _outer(called: list[Any]) -> Iterator[Any]:
    """Those with parameters that are inside no other one, in the order of their calls."""
    inner: set[int] = set()
    for module in called:
        if id(module) not in inner:
            inner.update(id(child) for child in module.modules())
            if next(module.parameters(), None) is not None:
                yield module
