"""Call a function once a module has been imported, without importing it ourselves.

A finder in front of ``sys.meta_path`` lets the real finders find the module and wraps the loader's
``exec_module``: the function runs right after the module's own code, before its importer goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def when_imported(name: str, call: Callable[[], None]) -> None:
    """``call`` now if the module is loaded, else right after its import; its errors are eaten."""
    if name in sys.modules:
        _guarded(call)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder:
    """Stays until the module has been executed: others only ask whether it could be."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name = name
        self._call = call

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _CallingLoader(spec.loader, self._done)
                return spec
        return None

    def _done(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)
        _guarded(self._call)


class _CallingLoader:
    """The real loader, for everything but the moment after execution."""

    def __init__(self, loader: Any, done: Callable[[], None]) -> None:
        self._loader = loader
        self._done = done

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._done()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _guarded(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 (never into the job)
        return
