"""The function of a user's script, and the phases that it gives or marks.

A function that is a generator, or gives pairs of a name and a function, gives its phases: each is
called by itself, with a pause before. Of any other the phases are the stages that it marks.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from dfx_agent.shim import stage

_PAUSE_SECONDS = 0.05
_END = object()


class WrongUseError(Exception):
    """The script has no such function, or what it gives are no phases."""


class Boundary:
    """What ``SCRIPT.py:FUNCTION`` names; ``given`` are its inputs."""

    def __init__(self, script: str, function: str, given: Any) -> None:
        self.name = function
        self._args, self._known = _arguments(given)
        self._function = _found(_module(script), script, function)

    async def run(self) -> None:
        """Every phase once. Exceptions of the script pass through."""
        function = self._function
        if not callable(function):
            await self._phases(_pairs(function), self._args, self._known)
            return
        with stage(self.name):
            given = function(*self._args, **self._known)
            if inspect.isawaitable(given):
                given = await given
        if inspect.isgenerator(given):
            await self._phases(given, (), {})
        elif inspect.isasyncgen(given):
            await self._async_phases(given)
        elif _are_pairs(given):
            await self._phases(_pairs(given), (), {})

    async def _phases(self, phases: Iterator[Any], args: Any, known: Mapping[str, Any]) -> None:
        while True:
            with stage(self.name):  # what a generator does between two phases
                each = next(phases, _END)
            if each is _END:
                return
            await _alone(each, args, known)

    async def _async_phases(self, phases: AsyncIterator[Any]) -> None:
        while True:
            with stage(self.name):
                each = await anext(phases, _END)
            if each is _END:
                return
            await _alone(each, (), {})


def own_code() -> set[CodeType]:
    """What stands above the script in a stack."""
    ours = Boundary.run, Boundary._phases, Boundary._async_phases, _alone  # noqa: SLF001
    return {function.__code__ for function in ours}


async def _alone(phase: Any, args: Any, known: Mapping[str, Any]) -> None:
    name, function = _pair(phase)
    await asyncio.sleep(_PAUSE_SECONDS)
    with stage(name):
        given = function(*args, **known)
        if inspect.isawaitable(given):
            await given
    await asyncio.sleep(0)  # let the loop say how late it is before anything else runs


def _arguments(given: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """An object gives arguments by name, anything else is the only one; None gives none."""
    if given is None:
        return (), {}
    return ((), given) if isinstance(given, dict) else ((given,), {})


def _module(script: str) -> Any:
    """The script, imported as Python would run it, but not as ``__main__``."""
    path = Path(script)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise WrongUseError(f"{script} is no Python file")
    sys.path[0] = str(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _found(module: Any, script: str, function: str) -> Any:
    found = module
    for part in function.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise WrongUseError(f"{script} has no {function}") from None
    if not callable(found) and not _are_pairs(found):
        raise WrongUseError(f"{function} is neither a function nor pairs of a name and a function")
    return found


def _are_pairs(given: Any) -> bool:
    if isinstance(given, Mapping):
        given = list(given.items())
    if not isinstance(given, (list, tuple)) or not given:
        return False
    return all(_is_pair(each) for each in given)


def _is_pair(given: Any) -> bool:
    is_pair = isinstance(given, (list, tuple)) and len(given) == 2
    return is_pair and isinstance(given[0], str) and callable(given[1])


def _pairs(given: Any) -> Iterator[Any]:
    return iter(given.items() if isinstance(given, Mapping) else given)


def _pair(given: Any) -> tuple[str, Callable[..., Any]]:
    if not _is_pair(given):
        text = f"{given!r:.80}"
        raise WrongUseError(f"a phase is a pair of a name and a function, not {text}")
    name, function = given
    return name, function
