"""``stage`` and ``wait``: context managers that also decorate functions and generators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from dfx_agent.shim import compiling, memory_points, meter, recorder
from dfx_agent.shim.meter import clock
from dfx_agent.shim.span_writer import OpenSpan, innermost
from dfx_agent.wire.records import STAGE, WAIT

F = TypeVar("F", bound=Callable[..., Any])


class Span:
    """One named period of time. Spans belong to a context: threads and tasks never mix.

    The object can be entered again, even while it is open and from several tasks or threads.
    """

    __slots__ = ("_last", "_name", "_num_open")

    _kind = STAGE
    _last: OpenSpan | None

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_open = 0

    def __enter__(self) -> Span:
        if not compiling.is_compiling():
            begin = meter.is_open and clock()
            writer = recorder.current or recorder.active()
            if writer is not None:
                opened = writer.open(self, self._name, self._kind)
                if opened is not None:
                    self._last = opened
                    self._num_open += 1
            if begin:
                meter.spent_ns += clock() - begin
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._num_open:
            begin = meter.is_open and clock()
            opened = innermost.get()
            if opened is not None and opened[1] is self:
                outer = opened[-1]
                while outer is not None and not outer[1]._num_open:  # noqa: SLF001
                    outer = outer[-1]  # back to the nearest span that is still open
                innermost.set(outer)
            else:
                opened = self._find(opened)
            if opened is not None:
                self._num_open -= 1
                if opened[0] is recorder.current:
                    opened[0].close(opened, exc_type)
            if begin:
                meter.spent_ns += clock() - begin

    def _find(self, opened: OpenSpan | None) -> OpenSpan | None:
        """Find this span below spans that are still open, or as another context opened it."""
        while opened is not None and opened[1] is not self:
            opened = opened[-1]
        found, self._last = opened or self._last, None
        return found

    def __call__(self, function: F) -> F:
        """Decorate a function: every call is a span. A generator has a span per resumption."""
        import inspect  # noqa: PLC0415 (10 ms that only a decorator pays)

        if inspect.isasyncgenfunction(function):
            wrapper = self._around_async_generator(function)
        elif inspect.isgeneratorfunction(function):
            wrapper = self._around_generator(function)
        elif inspect.iscoroutinefunction(function):
            wrapper = self._around_coroutine(function)
        else:
            wrapper = self._around_function(function)
        return functools.wraps(function)(wrapper)  # type: ignore[return-value]

    def _around_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self._name):
                return function(*args, **kwargs)

        return run

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self._name):
                return await function(*args, **kwargs)

        return run

    def _around_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            iterator = function(*args, **kwargs)
            resume, argument = iterator.send, None
            try:
                while True:
                    try:
                        with type(self)(self._name):
                            item = resume(argument)
                    except StopIteration as stop:
                        return stop.value
                    try:
                        resume, argument = iterator.send, (yield item)
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 (handed to the body)
                        resume, argument = iterator.throw, error
            finally:
                iterator.close()

        return run

    def _around_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            iterator = function(*args, **kwargs)
            resume, argument = iterator.asend, None
            try:
                while True:
                    try:
                        with type(self)(self._name):
                            item = await resume(argument)
                    except StopAsyncIteration:
                        return
                    try:
                        resume, argument = iterator.asend, (yield item)
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 (handed to the body)
                        resume, argument = iterator.athrow, error
            finally:
                await iterator.aclose()

        return run


class stage(Span):  # noqa: N801 (read as a verb: with dfx.stage("rollout"))
    """A stage of the step, such as "rollout", "reward", "actor_update" or "weight_sync".

    A stage that is called "onload" or "offload" also records the memory before and after it.

    >>> import dfx_agent.shim as dfx
    >>> with dfx.stage("rollout"):
    ...     samples = ["a", "b"]
    >>> @dfx.stage("reward")
    ... def score(sample: str) -> float:
    ...     return float(sample == "a")
    >>> [score(sample) for sample in samples]
    [1.0, 0.0]
    """

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_open = 0
        if type(self) is stage and type(name) is str and name in _MOVING:
            self.__class__ = _MOVING[name]


class Onloading(stage):
    """A stage that moves model states to a device; it records the memory before and after."""

    __slots__ = ()
    _move = "onload"

    def __enter__(self) -> Span:
        record_memory(memory_points.POINTS[self._move][0], self._name)
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, traceback)
        if exc_type is None:
            record_memory(memory_points.POINTS[self._move][1], self._name)


class Offloading(Onloading):
    """A stage that moves model states off a device; it records the memory before and after."""

    __slots__ = ()
    _move = "offload"


_MOVING: dict[str, type[stage]] = {"onload": Onloading, "offload": Offloading}


def record_memory(point: str, name: str) -> None:
    """Record the memory at a point of the stage that is open, or of ``name`` if none is open."""
    writer = recorder.current
    if writer is None or compiling.is_compiling():
        return
    try:
        opened = innermost.get()
        while opened is not None and (opened[5] != STAGE or not opened[1]._num_open):  # noqa: SLF001
            opened = opened[-1]
        stage = name if opened is None else opened[0].name_of(opened[4])
        memory_points.record_memory(writer.gauge, point, stage)
    except Exception:  # noqa: BLE001 (never into the job)
        writer.count_error()


class wait(Span):  # noqa: N801
    """A period in which this process only waits, such as "collector", "barrier" or "queue".

    >>> import dfx_agent.shim as dfx
    >>> with dfx.wait("barrier"):
    ...     pass
    """

    __slots__ = ()
    _kind = WAIT
