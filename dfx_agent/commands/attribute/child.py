"""What runs in the child process: the user's function in a loop, watched every millisecond.

The guest records stages, as in a job; lags are written next to its segment. The user's own
output goes to stderr.

A function that is a generator, or gives pairs of a name and a function, gives its phases: each is
called by itself, with a pause before. Of any other the phases are the stages that it marks.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import dfx_agent.shim as dfx
from dfx_agent.commands.attribute.heartbeat import Heartbeat, Lookout, Stretch, Traffic
from dfx_agent.shim import recorder, stage

_PAUSE_SECONDS = 0.05
_END = object()
_IDLE_SECONDS, _SETTLE_SECONDS = 1.0, 0.2
RESULT = "attribution.json"


@dataclass(frozen=True)
class Wanted:
    """What the child is asked for; ``inputs`` is a JSON file or "", ``folder`` the result's."""

    script: str
    function: str
    inputs: str
    num_tasks: int
    folder: str


@dataclass
class Outcome:
    """Monotonic ns but for seconds. ``error`` is "" where all went well."""

    segment: str = ""
    begin_ns: int = 0
    end_ns: int = 0
    idle_lag_seconds: float = 0.0
    num_beats: int = 0
    late_beats: list[Stretch] = field(default_factory=list)
    held: list[tuple[int, int, str]] = field(default_factory=list)
    num_wakes: int = 0
    late_wakes: list[Stretch] = field(default_factory=list)
    error: str = ""
    is_wrong_use: bool = False


def main() -> None:
    """In the child: ``argv[1]`` is a Wanted as JSON."""
    wanted = Wanted(**json.loads(sys.argv[1]))
    outcome = Outcome()
    try:
        _run(wanted, outcome)
    except WrongUseError as error:
        outcome.error, outcome.is_wrong_use = str(error), True
    except Exception as error:  # noqa: BLE001 (the user's)
        traceback.print_exception(type(error), error, _from_the_script(error.__traceback__))
        outcome.error = f"{type(error).__name__}: {error}"
    Path(wanted.folder, RESULT).write_text(json.dumps(asdict(outcome)))
    dfx.shutdown()


def _run(wanted: Wanted, outcome: Outcome) -> None:
    given = json.loads(Path(wanted.inputs).read_text()) if wanted.inputs else None
    dfx.init(directory=wanted.folder, run="attribute", role="attribute", rank=0)
    writer = recorder.current
    if writer is None:
        raise RuntimeError(f"nothing can be recorded in {wanted.folder}")
    outcome.segment = writer.path
    boundary = Boundary(wanted.script, wanted.function, given)
    asyncio.run(_watched(boundary, wanted.num_tasks, outcome))


def _from_the_script(trace: TracebackType | None) -> TracebackType | None:
    """Without our own frames and those of asyncio above it."""
    above = (str(Path(__file__).parent), str(Path(asyncio.__file__).parent))
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith(above):
        trace = trace.tb_next
    return trace


async def _watched(boundary: Boundary, num_tasks: int, outcome: Outcome) -> None:
    heartbeat, traffic = Heartbeat(), Traffic(num_tasks)
    lookout = Lookout(heartbeat, {_watched.__code__, *own_code()})
    heartbeat.start()
    outcome.idle_lag_seconds = await heartbeat.idle_lag_seconds(_IDLE_SECONDS)
    lookout.start()
    traffic.start()
    await asyncio.sleep(_SETTLE_SECONDS)
    outcome.begin_ns = time.monotonic_ns()
    try:
        await boundary.run()
    finally:
        await asyncio.sleep(0.01)  # what is late comes
        outcome.end_ns = time.monotonic_ns()
        for watcher in (lookout, heartbeat, traffic):
            watcher.stop()
        outcome.num_beats, outcome.late_beats = heartbeat.num_beats, heartbeat.late
        outcome.num_wakes, outcome.late_wakes = traffic.num_wakes, traffic.late
        outcome.held = lookout.held


class WrongUseError(Exception):
    """The script has no such function, or what it gives are no phases."""


class Boundary:
    """What ``SCRIPT.py:FUNCTION`` names; ``given`` are its inputs."""

    def __init__(self, script: str, function: str, given: Any) -> None:
        self.name = function
        self._args, self._kwargs = _arguments(given)
        self._function = _found(_module(script), script, function)

    async def run(self) -> None:
        """Every phase once. Exceptions of the script pass through."""
        function = self._function
        if not callable(function):
            await self._phases(_pairs(function), self._args, self._kwargs)
            return
        with stage(self.name):
            given = function(*self._args, **self._kwargs)
            if inspect.isawaitable(given):
                given = await given
        if inspect.isgenerator(given):
            await self._phases(given, (), {})
        elif inspect.isasyncgen(given):
            await self._async_phases(given)
        elif _are_pairs(given):
            await self._phases(_pairs(given), (), {})

    async def _phases(self, phases: Iterator[Any], args: Any, kwargs: Mapping[str, Any]) -> None:
        while True:
            with stage(self.name):  # what a generator does between two phases
                phase = next(phases, _END)
            if phase is _END:
                return
            await _alone(phase, args, kwargs)

    async def _async_phases(self, phases: AsyncIterator[Any]) -> None:
        while True:
            with stage(self.name):
                phase = await anext(phases, _END)
            if phase is _END:
                return
            await _alone(phase, (), {})


def own_code() -> set[CodeType]:
    """What stands above the script in a stack."""
    ours = Boundary.run, Boundary._phases, Boundary._async_phases, _alone  # noqa: SLF001
    return {function.__code__ for function in ours}


async def _alone(phase: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    name, function = _pair(phase)
    await asyncio.sleep(_PAUSE_SECONDS)
    with stage(name):
        given = function(*args, **kwargs)
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
    return all(_is_pair(pair) for pair in given)


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
