"""State that the interpreter never releases, created once per process and reused by later attaches.

The interpreter cannot remove a fork hook, and a context never drops a variable that was set in it.
Each attach would add another one. So they are stored in one private attribute of ``os``, which
remains.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

_ATTRIBUTE = "_dfx_residue"
_state: dict[str, Any] = vars(os).setdefault(_ATTRIBUTE, {})


def context_variable(name: str) -> ContextVar[Any]:
    """The context variable of this name, shared with earlier attaches; None by default."""
    variable: ContextVar[Any] = _state.setdefault(name, ContextVar(name, default=None))
    return variable


def modules() -> dict[str, ModuleType]:
    """The guest's modules by name: a private table after an attach, else ``sys.modules``."""
    by_name: dict[str, ModuleType] = getattr(__spec__.loader, "modules", sys.modules)
    return by_name


def renew_lock() -> None:
    """Replace the loader's lock in a forked child: a thread of the parent may have held it."""
    renew = getattr(__spec__.loader, "renew_lock", None)
    if renew is not None:
        renew()


def follow_forks(module: str, function: str) -> None:
    """Call ``module.function()`` in each forked child, for as long as the module is loaded."""

    def call(modules: dict[str, Any], module: str, function: str) -> None:
        target = getattr(modules.get(module), function, None)
        if target is not None:
            target()

    if "forks" not in _state:
        # with its own globals: the interpreter never releases it, so it must not refer to the guest
        _state["forks"] = FunctionType(call.__code__, {}, "dfx_after_fork")
        os.register_at_fork(after_in_child=_state["forks"])
    # an earlier guest of another version may have set another module
    _state["forks"].__defaults__ = (modules(), module, function)
