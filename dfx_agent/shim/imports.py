"""Calls a function once a module has been imported, without importing the module itself.

A finder at the front of ``sys.meta_path`` lets the real finders find the module, and replaces
``exec_module`` of its loader. The function then runs right after the module's own code, before the
importer continues. The spec and the loader remain the same objects, also for code that only asks
whether the module exists.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def when_imported(name: str, call: Callable[[], None]) -> None:
    """Run ``call`` now if the module is loaded, else after its import. Ignores its exceptions."""
    module = sys.modules.get(name)
    if module is None:
        _finder_of(name).add(call)
    elif getattr(getattr(module, "__spec__", None), "_initializing", False):
        # imported right now, by another thread or by our caller: wait for the import lock
        threading.Thread(target=_call_when_imported, args=(name, call), daemon=True).start()
    else:
        _guarded(call)


def _finder_of(name: str) -> _Finder:
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) and finder.name == name:
            return finder
    finder = _Finder(name)
    # a new list: the interpreter holds a reference to the original list, and would hold our finder
    sys.meta_path = [finder, *sys.meta_path]
    return finder


def cancel_all() -> None:
    """Drop all functions that still wait for an import."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # a new list: another thread may iterate over the old one, and would skip a finder
        sys.meta_path = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


class _Finder:
    """Stays in ``sys.meta_path`` until its module was executed, as some code only looks it up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: list[Callable[[], None]] = []

    def add(self, call: Callable[[], None]) -> None:
        if call not in self._calls:
            self._calls.append(call)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                with suppress(Exception):  # ignore a loader that does not accept attributes
                    if spec.loader is None:  # a namespace package has no code of its own
                        self._done()
                    else:
                        self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        original = loader.exec_module
        if getattr(original, "follower", None) is self:
            return  # the same loader was found before

        def exec_module(module: Any) -> None:
            original(module)
            if module.__name__ == self.name:  # a loader may serve many modules
                with suppress(AttributeError):
                    del loader.exec_module
                self._done()

        exec_module.follower = self  # type: ignore[attr-defined]
        loader.exec_module = exec_module

    def _done(self) -> None:
        if self in sys.meta_path:  # else cancelled, or done already
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            for call in self._calls:
                _guarded(call)


def _call_when_imported(name: str, call: Callable[[], None]) -> None:
    with suppress(Exception):  # the import failed: there is nothing to call for
        __import__(name)
        call()


def _guarded(call: Callable[[], None]) -> None:
    with suppress(Exception):  # never into the job
        call()
