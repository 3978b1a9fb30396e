"""Whether torch is tracing this very call: nothing may be recorded into a compiled graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from dfx_agent.shim import residue

_modules = sys.modules
_GUEST = ("dfx_agent.shim", "dfx_agent.wire")


def _look() -> bool:
    """False, too, of a torch that another thread is importing: it has no compiler yet."""
    compiler = getattr(_modules.get("torch"), "compiler", None)
    ask = getattr(compiler, "is_dynamo_compiling", None)
    return ask is not None and ask()


is_compiling: Callable[[], bool] = _look


def look_for_torch() -> None:
    """Use dynamo's own answer as soon as torch is loaded: a constant while it traces.

    ``is_dynamo_compiling`` is an empty function in eager mode (40 ns); ``is_compiling`` costs 230.
    """
    global is_compiling  # noqa: PLW0603 (bound once; spans read it on every call)
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)
    is_compiling = getattr(compiler, "is_dynamo_compiling", _look)


def keep_guest_out() -> None:
    """Make dynamo run the guest's frames as they are, which it meets below a graph break.

    It would compile them with "is tracing" as a constant, and they would fall silent. What is
    called inside a graph is inlined as before.
    """
    skip = _skip_code()
    if skip is not None:
        for name, module in list(residue.modules().items()):
            if name.startswith(_GUEST):
                for value in list(vars(module).values()):
                    if getattr(value, "__module__", None) == name:
                        for code in _codes(value):
                            skip(code)


def _skip_code() -> Callable[[CodeType], None] | None:
    frames: Any = getattr(getattr(_modules.get("torch._C"), "_dynamo", None), "eval_frame", None)
    set_strategy = getattr(frames, "set_code_exec_strategy", None)
    if set_strategy is None:  # torch < 2.7
        return getattr(frames, "skip_code", None)
    action = frames._FrameAction  # noqa: SLF001
    strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)  # noqa: SLF001
    return lambda code: set_strategy(code, strategy)


def _codes(value: Any) -> Iterator[CodeType]:
    """Of a function, or of the functions of a class, with what is defined inside."""
    if isinstance(value, type):
        for member in vars(value).values():
            if isinstance(member, FunctionType | property | staticmethod | classmethod):
                yield from _codes(member)
    elif isinstance(value, CodeType):
        yield value
        for constant in value.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes(constant)
    else:
        function = getattr(value, "fget", getattr(value, "__func__", value))
        code = getattr(function, "__code__", None)
        if code is not None and function.__globals__.get("__name__", "").startswith(_GUEST):
            yield from _codes(code)
