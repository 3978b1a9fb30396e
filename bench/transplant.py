"""The code of a changed module in the place of the code that runs."""

from __future__ import annotations

import ast
import gc
import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

PLAIN = (int, float, bool, str, bytes, type(None), frozenset, tuple, range)


def transplant(module: ModuleType, tree: ast.Module, **names: object) -> None:
    """Make ``module`` what ``tree`` says, for everybody in this process; ``names`` are there too.

    Functions that exist get the code and the defaults of the changed ones, classes the plain
    defaults of their fields, and each module that holds one of its constants the changed one.
    """
    file = str(module.__file__)
    fresh: dict[str, Any] = {"__name__": module.__name__, "__file__": file, **names}
    exec(compile(tree, file, "exec", dont_inherit=True), fresh)
    live = vars(module)
    live.update(names)
    _functions(live, fresh, file)
    for name, value in fresh.items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            _fields(live[name], value)
        elif isinstance(value, PLAIN) and not name.startswith("__") and live[name] != value:
            _constant(name, live[name], value)


def _functions(live: dict[str, Any], fresh: dict[str, Any], file: str) -> None:
    of_file = [
        each
        for each in gc.get_objects()
        if type(each) is FunctionType
        and each.__code__.co_filename == file  # isinstance asks proxies
    ]
    changed = {_place(each): each for each in of_file if each.__globals__ is fresh}
    for function in of_file:
        new = changed.get(_place(function))
        if function.__globals__ is not live or new is None:
            continue
        if len(new.__code__.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = new.__code__
        _defaults(function, new)


def _place(function: FunctionType) -> tuple[str, int]:
    return function.__name__, function.__code__.co_firstlineno


def _defaults(function: FunctionType, new: FunctionType) -> None:
    if all(isinstance(value, PLAIN) for value in new.__defaults__ or ()):
        function.__defaults__ = new.__defaults__
    if all(isinstance(value, PLAIN) for value in (new.__kwdefaults__ or {}).values()):
        function.__kwdefaults__ = new.__kwdefaults__


def _fields(live: type, fresh: type) -> None:
    """Plain class attributes, and the defaults of what dataclasses and named tuples generate."""
    for name, value in vars(fresh).items():
        is_plain = isinstance(value, PLAIN) and not name.startswith("__")
        if is_plain and vars(live).get(name) != value:
            setattr(live, name, value)
    for name in ("__init__", "__new__"):
        old, new = vars(live).get(name), vars(fresh).get(name)
        if inspect.isfunction(old) and inspect.isfunction(new):
            _defaults(old, new)


def _constant(name: str, old: object, new: object) -> None:
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", {})
        if name in held and held[name] is old:
            held[name] = new
