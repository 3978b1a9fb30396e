"""Stages and waits: context managers that also decorate functions, coroutines and generators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from dfx_agent.shim import compiling, recorder
from dfx_agent.shim.recorder import OpenSpan

F = TypeVar("F", bound=Callable[..., Any])


class Span:
    """One named stretch of time, keyed by context: threads and tasks never mix.

    The object may be entered again after it was left; nested re-use closes in reverse order.
    """

    __slots__ = ("_kind", "_name", "_open")

    def __init__(self, name: str, kind: int) -> None:
        self._name = name
        self._kind = kind
        self._open: OpenSpan | None = None

    def __enter__(self) -> Span:
        if not compiling.is_compiling():
            writer = recorder.current or recorder.active()
            if writer is not None:
                self._open = writer.open(self._name, self._kind, self._open)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened = self._open
        if opened is not None:
            self._open = opened[-1]
            opened[0].close(opened, self._kind, exc_type)

    def __call__(self, function: F) -> F:
        """Decorate: every call is a span of its own."""
        import inspect  # noqa: PLC0415 (10 ms that only a decorator pays)

        name, kind = self._name, self._kind
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with Span(name, kind):
                    return await function(*args, **kwargs)

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with Span(name, kind):
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]
