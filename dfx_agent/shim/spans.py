"""Stages and waits: context managers that also decorate functions, coroutines and generators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from dfx_agent.shim import compiling, recorder
from dfx_agent.shim.recorder import OpenSpan, innermost

F = TypeVar("F", bound=Callable[..., Any])


class Span:
    """One named stretch of time, keyed by context: threads and tasks never mix.

    The object may be entered again, also while it is open and from several tasks or threads.
    """

    __slots__ = ("_kind", "_last", "_name", "_num_open")

    def __init__(self, name: str, kind: int) -> None:
        self._name = name
        self._kind = kind
        self._num_open = 0
        self._last: OpenSpan | None = None

    def __enter__(self) -> Span:
        if not compiling.is_compiling():
            writer = recorder.current or recorder.active()
            if writer is not None:
                opened = writer.open(self, self._name, self._kind)
                if opened is not None:
                    self._last = opened
                    self._num_open += 1
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._num_open:
            opened = innermost.get()
            if opened is None or opened[1] is not self:
                opened = self._find(opened)
            else:
                self._leave(opened)
            if opened is not None:
                self._num_open -= 1
                writer = opened[0]
                if writer is recorder.current:
                    writer.close(opened, failed=exc_type is not None)

    def _find(self, opened: OpenSpan | None) -> OpenSpan | None:
        """Ours below spans that are still open, or one that another context opened."""
        while opened is not None and opened[1] is not self:
            opened = opened[-1]
        found, self._last = opened or self._last, None
        return found

    @staticmethod
    def _leave(opened: OpenSpan) -> None:
        """Back to the nearest span that is still open."""
        outer = opened[-1]
        while outer is not None and not outer[1]._num_open:  # noqa: SLF001 (its own kind)
            outer = outer[-1]
        innermost.set(outer)

    def __call__(self, function: F) -> F:
        """Decorate: every call is a span; a generator has one each time its body runs."""
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
            with Span(self._name, self._kind):
                return function(*args, **kwargs)

        return run

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **kwargs: Any) -> Any:
            with Span(self._name, self._kind):
                return await function(*args, **kwargs)

        return run

    def _around_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            iterator = function(*args, **kwargs)
            resume, argument = iterator.send, None
            try:
                while True:
                    try:
                        with Span(self._name, self._kind):
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
                        with Span(self._name, self._kind):
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
