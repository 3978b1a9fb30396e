"""Ray: each method call of an actor is a stage of that name, unless a framework marks its stages.

Ray 2 runs every call inside ``ray._private.worker._changeproctitle("ray::Actor.method", ...)`` and
looks that function up at each call, so this also works in running actors. Methods of actors with an
event loop overlap in one thread and are not recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import dfx_agent.shim as dfx
from dfx_agent.shim import adapters, recorder
from dfx_agent.shim.adapters import Parts
from dfx_agent.shim.patches import PatchSet, Switch

KIND = "launcher"  # its metrics have no naming scheme of their own

_TITLE = "ray::"


class _MethodCall:
    """Ray's own context manager with a stage around it."""

    def __init__(self, title_change: Any, stage: Any) -> None:
        self._title_change, self._stage = title_change, stage

    def __enter__(self) -> Any:
        self._stage.__enter__()
        return self._title_change.__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        try:
            return self._title_change.__exit__(exc_type, exc, traceback)
        finally:
            self._stage.__exit__(exc_type, exc, traceback)


def _patch_calls(patches: PatchSet, module: ModuleType) -> None:
    def wrapper(original: Callable[[str, str], Any], switch: Switch) -> Any:
        def _changeproctitle(title: str, next_title: str) -> Any:
            change = original(title, next_title)
            method = _stage_of(title, module) if switch.is_on else ""
            if not method:
                return change
            switch.mark_used()
            return _MethodCall(change, dfx.stage(method))

        return _changeproctitle

    patches.replace(module, "_changeproctitle", wrapper)


def _stage_of(title: str, module: ModuleType) -> str:
    """The method in "ray::Actor.method"; "" if it should not be a stage."""
    writer = recorder.current
    is_armed = recorder.start_late is not None and "torch" in sys.modules
    if adapters.has_framework() or (writer is None and not is_armed):
        return ""
    try:
        _, is_method, method = title.removeprefix(_TITLE).rpartition(".")
        worker: Any = module.global_worker
        is_ours = is_method and not method.startswith("__") and not worker.actor_id.is_nil()
        return method if is_ours and not worker.core_worker.current_actor_is_asyncio() else ""
    except Exception:  # noqa: BLE001 (private to Ray)
        recorder.count_error()
        return ""


def _patch_driver(patches: PatchSet, module: ModuleType) -> None:
    """A driver that waits for results gets a segment, so that its exit is seen."""

    def wrapper(original: Callable[..., Any], switch: Switch) -> Any:
        def get_objects(*args: Any, **kwargs: Any) -> Any:
            if switch.is_on and recorder.current is None:
                _see_driver(module)
            return original(*args, **kwargs)

        return get_objects

    patches.replace(module.Worker, "get_objects", wrapper)


def _see_driver(module: ModuleType) -> None:
    try:
        if module.global_worker.mode == module.SCRIPT_MODE:
            recorder.active()
    except Exception:  # noqa: BLE001 (private to Ray)
        recorder.count_error()


PARTS: Parts = {
    "calls": ("ray._private.worker", _patch_calls),
    "driver": ("ray._private.worker", _patch_driver),
}
