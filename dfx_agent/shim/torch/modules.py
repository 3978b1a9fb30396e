"""Finds the models of this process: DDP modules, and the root modules whose forward is timed.

Models are found when the job calls them, with one hook on all modules until every optimizer has
stepped twice. Afterwards only root modules have a hook (1.8 us per call). The interpreter's objects
are not searched: ``gc.get_objects`` returns tuples that another thread is still filling, and its
``tuple(...)`` then fails with a SystemError (bpo-15108).

If dynamo has compiled something, or will, a hook on a module would cause a recompilation, and one
on all modules a warning of torch. From the first call of ``torch.compile`` on, no module has a hook
of the guest. DDP modules are then found in their constructor, or by ``find_active_ddp``: torch
knows whose DDP forward is running.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable
from heapq import nlargest
from typing import Any

from dfx_agent.shim import compiling, meter, patches, recorder, span_writer
from dfx_agent.shim.meter import clock
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.torch import collectives, ddp, model_work, step_hooks

FORWARD = PatchSet("forward")
COMPILE = PatchSet("compile", is_optional=True)
SERVING = PatchSet("serving", is_optional=True)

_MAX_ROOTS = 8
# a hook on all modules costs 1 to 2 us a call: at most 30 ms at a time, and 1 s in all
_MAX_CALLS = 20_000
_MAX_TURNS = 32
_MAX_LOOKS = 8  # forward passes without token ids after which they are not searched any more
_opened: dict[int, span_writer.OpenSpan | None] = {}
_hooked: weakref.WeakSet[Any] = weakref.WeakSet()
_all_roots: weakref.WeakSet[Any] = weakref.WeakSet()  # includes roots without a hook at the moment


def follow_models() -> None:
    """Follow the models that the job calls, from its next backward on."""
    step_hooks.install_late()
    _follow_default_group()
    step_hooks.before_next_backward.append(_follow_known)
    if not {FORWARD.name, ddp.PATCHES.name} <= patches.disabled():
        step_hooks.before_next_backward.append(_listen)


def find_active_ddp() -> None:
    """Follow the DDP module whose forward runs now, if any; called once a second in any thread.

    This is the only way to find a module that was compiled before the guest was loaded.
    """
    parallel = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    if _watch_active_ddp in step_hooks.before_next_backward:
        return
    with contextlib.suppress(AttributeError, TypeError):  # no DDP, or none is running
        # one expression: the guest must not end up with the last reference
        _search.active_ddp = weakref.ref(parallel._active_ddp_module)  # type: ignore[union-attr] # noqa: SLF001
        step_hooks.before_next_backward.append(_watch_active_ddp)


def _watch_active_ddp() -> None:
    if _search.active_ddp is not None:
        ddp.watch(_search.active_ddp())


def _follow_default_group() -> None:
    """Track the group of all ranks, which also counts collectives that C++ issues."""
    distributed = sys.modules.get("torch.distributed")
    if collectives.PATCHES.is_active and distributed and distributed.is_initialized():
        collectives.group_of(distributed.group.WORLD)


def stop_listening() -> None:
    """Remove the hook on all modules, also in a forked child where nobody else would."""
    if _search.listener is not None:
        _search.listener.leave()


def leave_before_compile() -> None:
    """Make sure that no module has a hook of the guest when something is compiled."""
    COMPILE.install(_patch_compile)


def follow(called: Iterable[Any]) -> None:
    """Follow DDP modules and root modules among ``called``, in the training thread."""
    modules = list(called)
    parallel = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", ())
    for module in modules:
        if isinstance(module, parallel):
            ddp.watch(module)
    if not _is_compiled(modules):
        for root in nlargest(_MAX_ROOTS, _roots(modules), _num_elements):
            _all_roots.add(root)
            _time_forward(root)
            _count_work(root)


def _follow_known() -> None:
    """Follow the known models again after the hooks were removed and reinstalled."""
    for replica in list(ddp.followed):
        ddp.watch(replica)
    roots = list(_all_roots)
    if not _is_compiled(roots):
        for root in roots:
            _time_forward(root)
            _count_work(root)


def _count_work(root: Any) -> None:
    """Count the FLOPs of this model, and of models in other stages."""
    if root in model_work.state.asked:
        return
    try:
        model_work.count(root)
        model_work.listen(lambda: COMPILE.is_active and not _is_compiled(()))
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _listen() -> None:
    has_all = bool(_all_roots) and _covers_optimizers()
    COMPILE.install(_patch_compile)
    may_listen = COMPILE.is_active and not _is_compiled(())
    listener = _search.listener
    if listener is None and not has_all and _search.num_turns < _MAX_TURNS and may_listen:
        _search.num_turns += 1
        listener = _search.listener = _Listener()
        step_hooks.BACKWARD.on_restore(listener.leave)
    if listener and listener.at_backward not in step_hooks.before_next_backward:
        step_hooks.before_next_backward.append(listener.at_backward)


class _Listener:
    """Notes which modules are called, in any thread."""

    def __init__(self) -> None:
        self._called: dict[int, weakref.ref[Any]] = {}
        self._num_calls = 0
        self._last_step = step_hooks.num_steps() + 2 * max(1, step_hooks.num_optimizers())
        register = sys.modules["torch.nn.modules.module"].register_module_forward_pre_hook
        self._handle = register(self._on_call)
        compiler = getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)
        self._compile_callbacks = getattr(compiler, "start_callbacks", [])
        self._compile_callbacks.append(self._before_compile)

    def _before_compile(self, *_args: Any) -> None:
        """Dynamo guards on the number of global hooks: without ours it would compile again."""
        self._handle.remove()

    def _on_call(self, module: Any, _args: Any) -> None:
        if compiling.is_compiling():
            return
        try:
            self._num_calls += 1
            seen = self._called.get(id(module))
            if seen is None or seen() is not module:  # a freed module may have had the same id
                self._called[id(module)] = weakref.ref(module)
            if self._num_calls >= _MAX_CALLS:
                self._handle.remove()
        except Exception:  # noqa: BLE001 (never into the job)
            recorder.count_error()

    def at_backward(self) -> None:
        """Stop listening if enough was seen by the next backward, else continue."""
        is_full = self._num_calls >= _MAX_CALLS
        if not is_full and step_hooks.num_steps() < self._last_step:
            step_hooks.before_next_backward.append(self.at_backward)
            self._follow_early()
            return
        self.leave()
        follow(self._living())
        if is_full and not _covers_optimizers():  # a rollout came first
            step_hooks.before_next_backward.append(_listen)

    def leave(self) -> None:
        """Remove the hooks of this listener; may be called in any thread."""
        self._handle.remove()
        if self._before_compile in self._compile_callbacks:  # torch._dynamo.reset() clears them
            self._compile_callbacks.remove(self._before_compile)
        if _search.listener is self:
            _search.listener = None

    def _follow_early(self) -> None:
        """Follow what the first forward has called."""
        if not _hooked and not ddp.replicas:
            follow(self._living())

    def _living(self) -> list[Any]:
        return [module for ref in list(self._called.values()) if (module := ref()) is not None]


class _Search:
    """How far the search for the models of this process has got."""

    def __init__(self) -> None:
        self.listener: _Listener | None = None
        self.num_turns = 0
        self.active_ddp: weakref.ref[Any] | None = None  # the latest is enough


_search = _Search()


def _covers_optimizers() -> bool:
    covered = {id(parameter) for root in _all_roots for parameter in root.parameters()}
    return step_hooks.first_parameters() <= covered


def _roots(modules: list[Any]) -> list[Any]:
    """Trainable modules that are inside no other module, in the order of their calls."""
    inner: set[int] = set()
    outer = []
    for module in modules:
        if id(module) not in inner:
            outer.append(module)
            inner.update(id(child) for child in module.modules() if child is not module)
    outer = [module for module in outer if id(module) not in inner]
    return [root for root in outer if any(p.requires_grad for p in root.parameters())]


def _num_elements(root: Any) -> int:
    return sum(parameter.numel() for parameter in root.parameters())


def _is_compiled(modules: Iterable[Any]) -> bool:
    """Whether dynamo compiled or will compile something: a hook would make it compile again."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    # frames are not counted with fullgraph=True, graphs are
    has_compiled = any(counters.get(what) for what in ("frames", "stats"))
    # backends of every torch.compile() call, even before the first use; None and False do not count
    asked = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    has_compiled = has_compiled or any(map(callable, list(asked.values())))
    return has_compiled or any(m.__dict__.get("_compiled_call_impl") is not None for m in modules)


def _patch_compile(patches: PatchSet) -> None:
    """Patch what every way to compile calls before it reads hooks.

    The module is loaded as soon as an optimizer is; without one there is no hook on all modules.
    """
    context = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizeContext", None)
    if context is not None:
        patches.replace(context, "__init__", _compile_wrapper)


def _compile_wrapper(original: Any, switch: Switch) -> Any:
    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N807
        if switch.is_on:
            _before_compile()
        original(*args, **kwargs)

    return __init__


def _before_compile() -> None:
    """Remove all module hooks, in the thread that starts a compilation."""
    try:
        stop_listening()
        FORWARD.restore()
        model_work.WORK.restore()
        SERVING.restore()
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def _time_forward(root: Any) -> None:
    if root in _hooked:
        return
    COMPILE.install(_patch_compile)

    def change(patches: PatchSet) -> None:
        _hooked.add(root)
        before = _BeforeForward(patches.switch, sys.modules["torch"])
        after = _AfterForward()
        patches.on_restore(root.register_forward_pre_hook(before, with_kwargs=True).remove)
        patches.on_restore(root.register_forward_hook(after, always_call=True).remove)
        patches.on_restore(_forget_all)

    if FORWARD.is_active:
        change(FORWARD)
    else:
        FORWARD.install(change)


class _Hook:
    """Base of hooks that become functions without effect in a copied or pickled module."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _BeforeForward(_Hook):
    """Times passes that will be trained; generation, which calls forward per token, is skipped."""

    def __init__(self, switch: Switch, torch: Any) -> None:
        self._switch = switch
        self._is_trained = torch.is_grad_enabled
        self._token_types = torch.int64, torch.int32
        self._num_looks = _MAX_LOOKS

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._switch.is_on or compiling.is_compiling():
            return
        begin = meter.is_open and clock()
        key = id(module)
        try:
            if key in _opened:  # torch calls no post-hook after a KeyboardInterrupt
                _close(key, RuntimeError)
            if self._is_trained():
                if not _opened:  # of nested models the outer one counts
                    token_types = self._token_types if self._num_looks else ()
                    has_tokens = step_hooks.count_inputs(args, kwargs, token_types)
                    self._num_looks = _MAX_LOOKS if has_tokens else max(0, self._num_looks - 1)
                _opened[key] = step_hooks.begin_stage("forward")
                if not self._switch.is_on:  # removed meanwhile
                    _close(key, None)
            if begin:
                meter.spent_ns += clock() - begin
        except Exception:  # noqa: BLE001 (never into the job)
            _opened.pop(key, None)


class _AfterForward(_Hook):
    """Closes the stage even if the hook was suspended since: an open stage would look blocked."""

    def __call__(self, module: Any, *_args: Any) -> None:
        if not compiling.is_compiling():
            begin = meter.is_open and clock()
            step_hooks.close_stage(_opened.pop(id(module), None), None)
            if begin:
                meter.spent_ns += clock() - begin


def _close(module_id: int, failure: type[BaseException] | None) -> None:
    step_hooks.close_stage(_opened.pop(module_id, None), failure)


def _forget_all() -> None:
    _hooked.clear()
    for module_id in list(_opened):
        _close(module_id, None)
