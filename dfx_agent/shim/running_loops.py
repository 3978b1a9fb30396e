"""Finds the event loops that run in this process, without a hook in any of them.

asyncio's own loops, and whatever ``asyncio.run`` runs, appear in the frames of their threads. A
loop written in C (uvloop) that is run directly, as in Ray's actors, has no frame. Such a loop is
found through its tasks, while it has any.

The frames come from frames.py. ``faulthandler``, as in stacks.py, is not an option: it makes a
system call for every word and shows at most 100 threads.
"""

from __future__ import annotations

import sys
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from dfx_agent.shim.frames import MAX_FRAMES, frames_of, threads_now

_MAX_TASKS = 4096
_MAX_THREADS = 128  # the latest, and as many of the oldest
_WITHOUT_FRAMES = ("uvloop", "rloop", "winloop")


def running_loops() -> list[tuple[Any, int | None]]:
    """Return (loop, its thread) of each running event loop; for None see ``thread_of``."""
    owners = _owners()
    found: dict[int, tuple[Any, int | None]] = {}
    threads = threads_now()
    del threads[_MAX_THREADS:-_MAX_THREADS]
    for ident in threads:
        loop = _loop_of(ident, owners)
        if loop is not None:
            found[id(loop)] = loop, ident
    if any(name in sys.modules for name in _WITHOUT_FRAMES):
        for loop in _loops_of_tasks():
            found.setdefault(id(loop), (loop, None))
    return list(found.values())


def thread_of(loop: Any) -> tuple[int | None, int | None]:
    """Return (thread that runs a task of this loop, frames below it); (None, None) if none."""
    try:
        task = sys.modules["asyncio"].current_task(loop)
        wanted = getattr(task.get_coro(), "cr_frame", None) if task is not None else None
    except (AttributeError, KeyError, RuntimeError):
        wanted = None
    if wanted is None:
        return None, None
    for ident in threads_now():
        frames = frames_of(ident)
        if wanted in frames:
            return ident, len(frames) - frames.index(wanted) - 1
    return None, None


def depth(frame: FrameType | None) -> int:
    """Number of frames from this one down to the bottom of the stack, at most 200."""
    number = 0
    while frame is not None and number < MAX_FRAMES:
        frame, number = frame.f_back, number + 1
    return number


def _owners() -> dict[CodeType, str]:
    """Code that runs a loop -> its local variable that is or contains the loop."""
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


def _loop_of(ident: int, owners: dict[CodeType, str]) -> Any:
    for frame in frames_of(ident):
        name = owners.get(frame.f_code)
        if name is not None:
            owner = frame.f_locals.get(name)
            loop = getattr(owner, "_loop", owner)
            if hasattr(loop, "call_soon_threadsafe"):
                return loop
    return None


def _loops_of_tasks() -> list[Any]:
    """Running loops of all tasks; asyncio's set of tasks has a new name since Python 3.12."""
    tasks: Any = sys.modules.get("asyncio.tasks")
    all_tasks: Any = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", None)
    found: dict[int, Any] = {}
    for reference in islice(list(getattr(all_tasks, "data", ())), _MAX_TASKS):
        task = reference()
        loop = task.get_loop() if task is not None else None
        if loop is not None and loop.is_running():
            found[id(loop)] = loop
    return list(found.values())
