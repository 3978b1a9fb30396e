"""The models of this process: found among the interpreter's objects, never by a wrapped class.

One look finds what a late attach and an early one need alike: DDP modules, and the roots whose
forward is timed (their hooks cost 1.8 us a call; hooks on every module would cost 0.3 ms a step).
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import weakref
from collections.abc import Callable
from heapq import nlargest
from itertools import compress
from typing import Any

from dfx_agent.shim import compiling, ddp, recorder, torch_hooks
from dfx_agent.shim.patches import PatchSet, Switch

FORWARD = PatchSet("forward")

_MAX_ROOTS = 8
# 4 ms, less than the time after which Python takes the GIL from a thread; then the job has it as
# long: where processors are short, each change of hands costs the job a wait for one
_SLICE = 40_000
_BREATH_SECONDS = 0.004
_opened: dict[int, recorder.OpenSpan | None] = {}
_hooked: weakref.WeakSet[Any] = weakref.WeakSet()


def look() -> None:
    """Find models; those that are new are followed from the next backward on."""
    torch_hooks.install_late()
    modules = _all_modules()
    parallel = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", ())
    replicas = [weakref.ref(module) for module in modules if isinstance(module, parallel)]
    found = [] if _is_compiled(modules) else nlargest(_MAX_ROOTS, _roots(modules), _num_elements)
    roots = [weakref.ref(root) for root in found]
    torch_hooks.before_next_backward.append(lambda: _follow(replicas, roots))


def _follow(replicas: list[Any], roots: list[Any]) -> None:
    for ref in replicas:
        replica = ref()
        if replica is not None:
            ddp.watch(replica)
    for ref in roots:
        root = ref()
        if root is not None:
            _time_forward(root)


def _all_modules() -> list[Any]:
    """In slices, between which the job has the GIL: a process with torch has 300,000 objects.

    The youngest go first, so that no tensor which the job drops meanwhile is kept alive for long.
    """
    kinds = _subclasses(sys.modules["torch.nn"].Module)
    objects = gc.get_objects()  # by generation, the youngest first; within one the oldest first
    found = _modules_among(objects[:_SLICE], kinds)
    del objects[:_SLICE]
    while objects:
        found += _modules_among(objects[-_SLICE:], kinds)
        del objects[-_SLICE:]
        time.sleep(_BREATH_SECONDS)
    return found


def _modules_among(objects: list[Any], kinds: set[type]) -> list[Any]:
    """In C: 0.1 us an object."""
    try:
        found = list(compress(objects, map(kinds.__contains__, map(type, objects))))
    except Exception:  # noqa: BLE001 (a metaclass may have no hash, or one of its own)
        ids = set(map(id, kinds))
        found = list(compress(objects, map(ids.__contains__, map(id, map(type, objects)))))
    return [module for module in found if "_modules" in module.__dict__]  # else half made


def _subclasses(kind: type) -> set[type]:
    found, news = {kind}, [kind]
    while news:
        children: list[type] = type.__subclasses__(news.pop())
        new = [child for child in children if child not in found]
        found.update(new)
        news += new
    return found


def _roots(modules: list[Any]) -> list[Any]:
    """Modules inside no other one that have something to train."""
    inner = {id(child) for module in modules for child in module.__dict__["_modules"].values()}
    outer = (module for module in modules if id(module) not in inner)
    return [root for root in outer if any(p.requires_grad for p in root.parameters())]


def _num_elements(root: Any) -> int:
    return sum(parameter.numel() for parameter in root.parameters())


def _is_compiled(modules: list[Any]) -> bool:
    """A hook on a module inside a compiled function would make dynamo compile it again."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    has_frames = bool(dynamo and dynamo.counters["frames"])
    return has_frames or any(m.__dict__.get("_compiled_call_impl") is not None for m in modules)


def _time_forward(root: Any) -> None:
    if root in _hooked:
        return

    def change(patches: PatchSet) -> None:
        _hooked.add(root)
        before = _BeforeForward(patches.switch, sys.modules["torch"].is_grad_enabled)
        after = _AfterForward()
        patches.on_restore(root.register_forward_pre_hook(before).remove)
        patches.on_restore(root.register_forward_hook(after, always_call=True).remove)
        patches.on_restore(_forget_all)

    if FORWARD.is_active:
        change(FORWARD)
    else:
        FORWARD.install(change)


class _Hook:
    """A module is copied and saved with its hooks: of ours, a function that does nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _BeforeForward(_Hook):
    """Only passes that will be trained on: generation calls forward for every token."""

    def __init__(self, switch: Switch, is_trained: Callable[[], bool]) -> None:
        self._switch = switch
        self._is_trained = is_trained

    def __call__(self, module: Any, *_args: Any) -> None:
        if not self._switch.is_on or compiling.is_compiling():
            return
        key = id(module)
        try:
            if key in _opened:  # torch calls no hook after a KeyboardInterrupt
                _close(key, RuntimeError)
            if self._is_trained():
                _opened[key] = torch_hooks.begin_stage("forward")
                if not self._switch.is_on:  # taken back meanwhile
                    _close(key, None)
        except Exception:  # noqa: BLE001 (never into the job)
            _opened.pop(key, None)


class _AfterForward(_Hook):
    """Also when the hook has been given up since: what is open would look stuck."""

    def __call__(self, module: Any, *_args: Any) -> None:
        if not compiling.is_compiling():
            torch_hooks.close_stage(_opened.pop(id(module), None), None)


def _close(module_id: int, failure: type[BaseException] | None) -> None:
    torch_hooks.close_stage(_opened.pop(module_id, None), failure)


def _forget_all() -> None:
    _hooked.clear()
    for module_id in list(_opened):
        _close(module_id, None)
