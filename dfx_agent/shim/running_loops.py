"""Which event loops run in this process, without a hook in any of them.

asyncio's own loops are seen in the frames of their threads, as is whatever ``asyncio.run`` runs. A
loop written in C (uvloop) that runs by itself, as in Ray's actors, has no frame: its tasks name it,
so it is found while it has one.

``sys._current_frames`` is called with the collector off (python/cpython#106883), and the frames are
let go before the interpreter gives anybody else a turn. Not ``faulthandler``, as in stacks.py: it
enters the kernel for every word, and shows 100 threads.
"""

from __future__ import annotations

import gc
import sys
from itertools import islice
from types import CodeType, FrameType
from typing import Any

_MAX_FRAMES = 200
_MAX_TASKS = 4096
_WITHOUT_FRAMES = ("uvloop", "rloop", "winloop")


def running_loops() -> list[tuple[Any, int | None]]:
    """(loop, its thread) of every event loop that runs now; None: see ``thread_of``."""
    owners = _owners()
    found: dict[int, tuple[Any, int | None]] = {}
    for ident, frame in frames_now().items():
        loop = _loop_of(frame, owners)
        if loop is not None:
            found[id(loop)] = loop, ident
    if any(name in sys.modules for name in _WITHOUT_FRAMES):
        for loop in _loops_of_tasks():
            found.setdefault(id(loop), (loop, None))
    return list(found.values())


def thread_of(loop: Any) -> tuple[int | None, int | None]:
    """(thread that runs a task of this loop now, frames under it); None, None where none does."""
    try:
        task = sys.modules["asyncio"].current_task(loop)
        wanted = getattr(task.get_coro(), "cr_frame", None) if task is not None else None
    except (AttributeError, KeyError, RuntimeError):
        wanted = None
    if wanted is None:
        return None, None
    for ident, frame in frames_now().items():
        below = _below(frame, wanted)
        if below:
            return ident, below - 1
    return None, None


def _below(frame: FrameType | None, wanted: FrameType) -> int:
    """Frames from ``wanted`` on down; 0 where it is not among these."""
    num_above = 0
    while frame is not None and frame is not wanted and num_above < _MAX_FRAMES:
        frame, num_above = frame.f_back, num_above + 1
    return depth(frame) if frame is wanted else 0


def depth(frame: FrameType | None) -> int:
    """How many frames there are from this one down, at most 200."""
    number = 0
    while frame is not None and number < _MAX_FRAMES:
        frame, number = frame.f_back, number + 1
    return number


def frames_now() -> dict[int, FrameType]:
    """The innermost frame of each thread."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()  # noqa: SLF001 (its documented name)
    finally:
        if was_enabled:
            gc.enable()


def _owners() -> dict[CodeType, str]:
    """Code that runs a loop -> its variable that is the loop, or has it."""
    base: Any = sys.modules.get("asyncio.base_events")
    runners: Any = sys.modules.get("asyncio.runners")
    owners: dict[CodeType, str] = {}
    if base is not None:
        owners[base.BaseEventLoop.run_forever.__code__] = "self"
    if hasattr(runners, "Runner"):
        owners[runners.Runner.run.__code__] = "self"
    if hasattr(runners, "run"):
        owners[runners.run.__code__] = "loop"
    return owners


def _loop_of(frame: FrameType | None, owners: dict[CodeType, str]) -> Any:
    num_frames = 0
    while frame is not None and num_frames < _MAX_FRAMES:
        name = owners.get(frame.f_code)
        if name is not None:
            owner = frame.f_locals.get(name)
            loop = getattr(owner, "_loop", owner)
            if hasattr(loop, "call_soon_threadsafe"):
                return loop
        frame, num_frames = frame.f_back, num_frames + 1
    return None


def _loops_of_tasks() -> list[Any]:
    """A weak set has all tasks; from Python 3.12 on it has another name."""
    tasks: Any = sys.modules.get("asyncio.tasks")
    known: Any = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", None)
    found: dict[int, Any] = {}
    for reference in islice(list(getattr(known, "data", ())), _MAX_TASKS):
        task = reference()
        loop = task.get_loop() if task is not None else None
        if loop is not None and loop.is_running():
            found[id(loop)] = loop
    return list(found.values())
