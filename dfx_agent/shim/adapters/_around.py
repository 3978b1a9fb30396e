"""What adapters put around the functions of a framework: spans, the metric funnel, steps, roles.

``put`` finds a function by its path and wraps it with what ``span``, ``funnel``, ``quiet``,
``before`` or ``after`` make. The wrapper calls the original with exactly what it was given and
gives back what it returned or raised; a coroutine function stays one (Ray decides by that whether
an actor is asynchronous). What reads arguments for us may fail: that is counted, and the job goes
on.

A class that Ray pickles by value (``@ray.remote`` above the class in its own module) must not be
patched: the wrapper would travel into workers that need not have dfx-agent. Adapters patch its base
classes and what it calls instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from dfx_agent.shim import recorder, span_writer
from dfx_agent.shim.adapters import quiet_trackers
from dfx_agent.shim.held_memory import POINTS
from dfx_agent.shim.ledger import joined, observe
from dfx_agent.shim.patches import PatchSet, Switch
from dfx_agent.shim.recorder import Recorder
from dfx_agent.shim.spans import tell_held, wait
from dfx_agent.shim.torch import step_hooks
from dfx_agent.wire import variables

Make = Callable[[Any, Switch], Any]
# called with the recorder and with whatever the wrapped function is called with, so its parameters
# have the names of the original's: callers may use them
Read = Callable[..., Any]
Name = str | Callable[..., str | None]

_LARGEST_STEP = 2**63 - 2


class StageOnce:
    """``with StageOnce("rollout"):`` a stage, or nothing where the same one is open already."""

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
    """The same where states come to a device: what is held before and after is told."""

    __slots__ = ()
    _move = "onload"

    def __enter__(self) -> StageOnce:
        tell_held(POINTS[self._move][0], self._name)
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, traceback)
        if exc_type is None:
            tell_held(POINTS[self._move][1], self._name)


class Offload(Onload):
    """Where they go off it."""

    __slots__ = ()
    _move = "offload"


def put(patches: PatchSet, module: Any, path: str, make: Make) -> None:
    """Wrap ``module.path`` ("Class.method"); nothing happens where the version has no such."""
    *owners, name = path.split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part, None)
    patches.replace(owner, name, make)


def span(name: Name, *, kind: Callable[[str], Any] = StageOnce, read: Read | None = None) -> Make:
    """Each call is a stage; ``name`` may be asked of the arguments, None: not this time."""

    def make(original: Any, switch: Switch) -> Any:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
            if not switch.is_on:
                return None
            switch.see()
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
    """Each call is a wait of this kind."""
    return span(kind, kind=wait)


def funnel(read: Read) -> Make:
    """``read`` sees every report on its way in; the trackers below are not heard a second time."""
    see, mute = before(read), quiet()
    return lambda original, switch: see(mute(original, switch), switch)


def quiet() -> Make:
    """Trackers called inside are not heard: an adapter has the values already."""

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
    """``read`` sees the arguments of each call."""

    def make(original: Any, switch: Switch) -> Any:
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            if switch.is_on and _guarded(read, args, kwargs):
                switch.see()
            return await original(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            if switch.is_on and _guarded(read, args, kwargs):
                switch.see()
            return original(*args, **kwargs)

        return run_async if _is_coroutine(original) else run

    return make


def after(read: Read) -> Make:
    """``read`` sees the result, then the arguments, of each call of a plain function."""

    def make(original: Any, switch: Switch) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if switch.is_on and _guarded(read, (result, *args), kwargs):
                switch.see()
            return result

        return run

    return make


def report(writer: Recorder, values: Any, step: Any, *, ends_step: bool = False) -> None:
    """A dict of metrics under the framework's own names and step; what is no number is passed over.

    ``ends_step``: this report closes its step, the next one begins now.
    """
    number = step_number(step)
    if isinstance(values, Mapping):
        writer.scalars(values, number)
    if ends_step and number is not None:
        begin_step(writer, number + 1)


def crossing(writer: Recorder, boundary: str, parts: Sequence[Any], columns: Iterable[str]) -> None:
    """Micro-batches that cross a boundary together, in the shape ledger as one batch."""
    if parts:
        observe(writer, boundary, joined(parts, columns))


def begin_step(writer: Recorder, step: Any) -> None:
    """Go on to a step; one that lies behind is a replay after a resume and moves nothing.

    Nor does any in a job that calls ``dfx.set_step`` itself: two counts would take turns.
    """
    number = step_number(step)
    if (
        number is not None
        and not writer.has_own_steps
        and (not writer.has_explicit_steps or writer.step is None or number > writer.step)
    ):
        writer.set_step(number)


def step_number(step: Any) -> int | None:
    """A step as whole number >= 0; None for one that is not given or not a number."""
    try:
        number = operator.index(step)
    except TypeError:
        return None
    return number if 0 <= number <= _LARGEST_STEP else None


def claim(writer: Recorder, role: str, **numbers: int) -> None:
    """Say what this process is (role, rank, world_size), unless DFX_ROLE says so already."""
    who = writer.identity
    given: dict[str, Any] = {k: v for k, v in numbers.items() if getattr(who, k) != v}
    if role and role != who.role and not variables.ROLE.value():
        given["role"] = role[:32]
    writer.update_identity(given)


def _is_coroutine(function: Any) -> bool:
    import inspect  # noqa: PLC0415 (10 ms; every framework has loaded it)

    return inspect.iscoroutinefunction(function)


def see(read: Read, *args: Any) -> None:
    """``read`` with the recorder, for wrappers that are made elsewhere."""
    _guarded(read, args, {})


def _asked(name: Callable[..., str | None], args: Any, kwargs: Any) -> str | None:
    try:
        return name(*args, **kwargs)
    except Exception:  # noqa: BLE001 (never into the job)
        if recorder.current is not None:
            recorder.current.count_error()
        return None


def _guarded(read: Read, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it was read."""
    writer = recorder.current or recorder.active()
    if writer is None:
        return False
    try:
        read(writer, *args, **kwargs)
    except Exception:  # noqa: BLE001 (never into the job)
        writer.count_error()
        return False
    return True
