"""Wrappers for the functions of a framework: they record spans, metrics, steps and roles.

``wrap`` finds a function by its path and wraps it with what ``span``, ``funnel``, ``quiet``,
``before`` or ``after`` create. A wrapper passes on all arguments, results and exceptions unchanged.
A coroutine function stays one, because Ray decides by that whether an actor is asynchronous. An
error while reading arguments is counted, and the job continues.

A class that Ray pickles by value (``@ray.remote`` above the class in its own module) must not be
patched: the wrapper would be sent to workers that may not have dfx-agent. Adapters patch its base
classes, and the functions that it calls, instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from dfx_agent.shim import recorder, span_writer
from dfx_agent.shim.adapters import quiet_trackers
from dfx_agent.shim.ledger import join_parts, observe
from dfx_agent.shim.memory_points import POINTS
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.spans import record_memory, wait
from dfx_agent.shim.torch import step_hooks
from dfx_agent.wire import variables

Make = Callable[[Any, Switch], Any]
# called with the recorder and the arguments of the wrapped function. Its parameters have the names
# of the original's, because callers may pass them by name
Read = Callable[..., Any]
Name = str | Callable[..., str | None]

_LARGEST_STEP = 2**63 - 2


class StageOnce:
    """``with StageOnce("rollout"):`` opens a stage, unless the same one is open already."""

    __slots__ = ("_name", "_opened")

    def __init__(self, name: str) -> None:
        self._name = name
        self._opened: span_writer.OpenSpan | None = None

    def __enter__(self) -> StageOnce:
        with suppress(Exception):  # never into the job
            self._opened = step_hooks.open_stage(self._name)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened, self._opened = self._opened, None
        with suppress(Exception):
            step_hooks.close_stage(opened, exc_type)


class Onload(StageOnce):
    """A stage that moves model states to a device; it records the memory before and after."""

    __slots__ = ()
    _move = "onload"

    def __enter__(self) -> StageOnce:
        record_memory(POINTS[self._move][0], self._name)
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, traceback)
        if exc_type is None:
            record_memory(POINTS[self._move][1], self._name)


class Offload(Onload):
    """A stage that moves model states off a device; it records the memory before and after."""

    __slots__ = ()
    _move = "offload"


def wrap(patches: PatchSet, module: Any, path: str, make: Make) -> None:
    """Wrap ``module.path`` ("Class.method"), if this version has it."""
    *owners, name = path.split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part, None)
    patches.replace(owner, name, make)


def span(name: Name, *, kind: Callable[[str], Any] = StageOnce, read: Read | None = None) -> Make:
    """Make each call a stage. A callable ``name`` gets the arguments; None means no stage."""

    def make(original: Any, switch: Switch) -> Any:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
            if not switch.is_on:
                return None
            switch.mark_used()
            if read is not None:
                _guarded(read, args, kwargs)
            return name if isinstance(name, str) else _asked(name, args, kwargs)

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            found = begin(args, kwargs)
            if found is None:
                return await original(*args, **kwargs)
            with kind(found):
                return await original(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            found = begin(args, kwargs)
            if found is None:
                return original(*args, **kwargs)
            with kind(found):
                return original(*args, **kwargs)

        return run_async if _is_coroutine(original) else run

    return make


def waiting(kind: str) -> Make:
    """Make each call a wait of this kind."""
    return span(kind, kind=wait)


def funnel(read: Read) -> Make:
    """Pass every report to ``read``, and stop the trackers below from recording it again."""
    see, mute = before(read), quiet()
    return lambda original, switch: see(mute(original, switch), switch)


def quiet() -> Make:
    """Stop trackers that are called inside from recording: an adapter has the values already."""

    def make(original: Any, switch: Switch) -> Any:
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            if not switch.is_on:
                return await original(*args, **kwargs)
            with quiet_trackers():
                return await original(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            if not switch.is_on:
                return original(*args, **kwargs)
            with quiet_trackers():
                return original(*args, **kwargs)

        return run_async if _is_coroutine(original) else run

    return make


def before(read: Read) -> Make:
    """Pass the arguments of each call to ``read``."""

    def make(original: Any, switch: Switch) -> Any:
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            if switch.is_on and _guarded(read, args, kwargs):
                switch.mark_used()
            return await original(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            if switch.is_on and _guarded(read, args, kwargs):
                switch.mark_used()
            return original(*args, **kwargs)

        return run_async if _is_coroutine(original) else run

    return make


def after(read: Read) -> Make:
    """Pass the result, then the arguments, of each call of a plain function to ``read``."""

    def make(original: Any, switch: Switch) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if switch.is_on and _guarded(read, (result, *args), kwargs):
                switch.mark_used()
            return result

        return run

    return make


def report(writer: Recorder, values: Any, step: Any, *, ends_step: bool = False) -> None:
    """Record a dict of metrics with the framework's own names and step; skip other values.

    With ``ends_step`` this report ends its step, and the next step starts now.
    """
    number = step_number(step)
    if isinstance(values, Mapping):
        writer.scalars(values, number)
    if ends_step and number is not None:
        begin_step(writer, number + 1)


def observe_parts(
    writer: Recorder, boundary: str, parts: Sequence[Any], columns: Iterable[str]
) -> None:
    """Record micro-batches that pass a boundary together as one batch in the shape ledger."""
    if parts:
        observe(writer, boundary, join_parts(parts, columns))


def begin_step(writer: Recorder, step: Any) -> None:
    """Start a step, unless its number is lower than the current one (a replay after a resume).

    Does nothing if the job calls ``dfx.set_step`` itself: two counters would alternate.
    """
    number = step_number(step)
    if (
        number is not None
        and not writer.has_own_steps
        and (not writer.has_explicit_steps or writer.step is None or number > writer.step)
    ):
        writer.set_step(number)


def step_number(step: Any) -> int | None:
    """The step as an integer >= 0; None if it is missing or not an integer."""
    try:
        number = operator.index(step)
    except TypeError:
        return None
    return number if 0 <= number <= _LARGEST_STEP else None


def claim(writer: Recorder, role: str, **numbers: int) -> None:
    """Set the role, rank or world size of this process, unless DFX_ROLE sets the role."""
    who = writer.identity
    given: dict[str, Any] = {k: v for k, v in numbers.items() if getattr(who, k) != v}
    if role and role != who.role and not variables.ROLE.value():
        given["role"] = role[:32]
    writer.update_identity(given)


def _is_coroutine(function: Any) -> bool:
    import inspect  # noqa: PLC0415 (10 ms; every framework has loaded it)

    return inspect.iscoroutinefunction(function)


def call_reader(read: Read, *args: Any) -> None:
    """Call ``read`` with the recorder, for wrappers that are created elsewhere."""
    _guarded(read, args, {})


def _asked(name: Callable[..., str | None], args: Any, kwargs: Any) -> str | None:
    try:
        return name(*args, **kwargs)
    except Exception:  # noqa: BLE001 (never into the job)
        if recorder.current is not None:
            recorder.current.count_error()
        return None


def _guarded(read: Read, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Call ``read`` and count an exception; return whether it succeeded."""
    writer = recorder.current or recorder.active()
    if writer is None:
        return False
    try:
        read(writer, *args, **kwargs)
    except Exception:  # noqa: BLE001 (never into the job)
        writer.count_error()
        return False
    return True
