"""What no visit of ours can take back, made once in a process and used again by the next visit.

The interpreter forgets no fork hook, and a context keeps every variable that was ever set in it.
Each visit would leave one more of them; so they stand in one private attribute of ``os``, which
stays.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

_NAME = "_dfx_residue"
_kept: dict[str, Any] = vars(os).setdefault(_NAME, {})


def context_variable(name: str) -> ContextVar[Any]:
    """The variable of this name, None by default, also of visits before."""
    found: ContextVar[Any] = _kept.setdefault(name, ContextVar(name, default=None))
    return found


def modules() -> dict[str, ModuleType]:
    """The guest's modules by name: a private table after an attach, else ``sys.modules``."""
    found: dict[str, ModuleType] = getattr(__spec__.loader, "modules", sys.modules)
    return found


def renew_lock() -> None:
    """In a forked child: a thread of the parent may have been loading a module of the guest."""
    renew = getattr(__spec__.loader, "renew_lock", None)
    if renew is not None:
        renew()


def follow_forks(module: str, function: str) -> None:
    """Call ``module.function()`` in each forked child, for as long as the module is loaded."""

    def call(modules: dict[str, Any], module: str, function: str) -> None:
        found = getattr(modules.get(module), function, None)
        if found is not None:
            found()

    if "forks" not in _kept:
        # with globals of its own: what the interpreter keeps for ever must not keep our modules
        _kept["forks"] = FunctionType(call.__code__, {}, "dfx_after_fork")
        os.register_at_fork(after_in_child=_kept["forks"])
    # a guest of another version that was here before may have named another module
    _kept["forks"].__defaults__ = (modules(), module, function)
