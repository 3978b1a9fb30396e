"""The code of a changed module in the place of the code that runs."""

from __future__ import annotations

import ast
import gc
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

PLAIN = (int, float, bool, str, bytes, type(None), frozenset, tuple, range)


def functions_by_file() -> dict[str, list[FunctionType]]:
    """All that there are now. It asks no class, which proxies answer with what they stand for."""
    found: dict[str, list[FunctionType]] = defaultdict(list)
    for item in gc.get_objects():
        if type(item) is FunctionType:
            found[item.__code__.co_filename].append(item)
    return found


def transplant(
    module: ModuleType, tree: ast.Module, functions: Iterable[FunctionType], **names: object
) -> None:
    """Make ``module`` what ``tree`` says, for everybody in this process; ``names`` are there too.

    Its ``functions`` get the code and the defaults of the changed ones, classes the plain defaults
    of their fields, and each module that holds one of its constants the changed one.
    """
    file = str(module.__file__)
    fresh: dict[str, Any] = {"__name__": module.__name__, "__file__": file, **names}
    gc.disable()  # what is new stays in the youngest generation: a look at all would copy them
    exec(compile(tree, file, "exec", dont_inherit=True), fresh)
    young = gc.get_objects(generation=0)
    gc.enable()
    live = vars(module)
    live.update(names)
    changed = {_place(f): f for f in young if type(f) is FunctionType and f.__globals__ is fresh}
    for function in functions:
        if function.__globals__ is live and (new := changed.get(_place(function))):
            if len(new.__code__.co_freevars) == len(function.__code__.co_freevars):
                function.__code__ = new.__code__
            _defaults(function, new)
    for name, value in fresh.items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            _fields(live[name], value)
        elif isinstance(value, PLAIN) and not name.startswith("__") and live[name] != value:
            _constant(name, live[name], value)


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
