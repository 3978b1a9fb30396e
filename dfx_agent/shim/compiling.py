"""Whether torch traces the current call: the guest must not record into a compiled graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from dfx_agent.shim import permanent_state

_modules = sys.modules
_GUEST = ("dfx_agent.shim", "dfx_agent.wire")


def _search_torch() -> bool:
    """Ask torch if it is loaded completely; a torch that is being imported has no compiler yet."""
    compiler = getattr(_modules.get("torch"), "compiler", None)
    ask = getattr(compiler, "is_dynamo_compiling", None)
    return ask is not None and ask()


is_compiling: Callable[[], bool] = _search_torch


def look_for_torch() -> None:
    """Use dynamo's own function once torch is loaded: dynamo treats it as a constant.

    ``is_dynamo_compiling`` is an empty function in eager mode (40 ns); ``is_compiling`` costs 230.
    """
    global is_compiling  # noqa: PLW0603 (bound once; spans read it on every call)
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)
    is_compiling = getattr(compiler, "is_dynamo_compiling", _search_torch)


def exclude_guest_from_compilation() -> None:
    """Make dynamo run the guest's functions uncompiled when it meets them below a graph break.

    Dynamo would compile them with "is compiling" as the constant True, so that they record nothing
    any more. Calls inside a graph are inlined as before.
    """
    skip = _skip_code()
    if skip is not None:
        for name, module in list(permanent_state.modules().items()):
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
    """Code of a function, or of all functions of a class, with nested functions."""
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
