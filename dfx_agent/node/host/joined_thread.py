"""Finds the thread that a main thread waits for in ``join``, and for how long it has waited.

``pthread_join`` sleeps in a futex whose value is the id of the joined thread (glibc,
nptl/pthread_join). ``/proc/PID/task/TID/syscall`` shows this value to a user who may trace the
process: proc(5), futex(2).
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from dfx_agent.facts.rank import Joining
from dfx_agent.node.host.processes import num_waits

_LOOK_EVERY_SECONDS = 1.0
_VALUE = 3  # syscall number, address, operation, value
_SLEEPS = "S (sleeping)"


class Joined(NamedTuple):
    """A main thread that sleeps until ``thread`` ends, and how often both threads have waited."""

    thread: int
    name: str
    main_waits: int
    thread_waits: int


def joined_by_main(pid: int) -> Joined | None:
    """None if the main thread does something else, or the kernel does not report it."""
    main = f"/proc/{pid}/task/{pid}"
    words, waits = _read(f"{main}/syscall").split(), num_waits(f"{main}/status")
    if len(words) <= _VALUE or waits is None or _state(main) != _SLEEPS:
        return None
    try:
        value = int(words[_VALUE], 16)
        threads = os.listdir(f"/proc/{pid}/task")
    except (OSError, ValueError):
        return None
    for thread in threads:
        path = f"/proc/{pid}/task/{thread}"
        if int(thread) != pid and _inner_id(path) == value:
            others = num_waits(f"{path}/status")
            name = _read(f"{path}/comm").strip()
            return None if others is None else Joined(int(thread), name, waits, others)
    return None


def _state(path: str) -> str:
    return _line(path, "State:")


def _inner_id(path: str) -> int:
    """The thread's id in the process's own pid namespace; 0 if the thread is gone."""
    ids = _line(path, "NSpid:").split()
    return int(ids[-1]) if ids else 0


def _line(path: str, key: str) -> str:
    lines = _read(f"{path}/status").splitlines()
    return next((line[len(key) :].strip() for line in lines if line.startswith(key)), "")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""


class _JoinSample(NamedTuple):
    seconds: float
    joined: Joined


class JoinWatch:
    """Joins of one process; ``look`` reads from the kernel at most once a second."""

    def __init__(self) -> None:
        self._first: _JoinSample | None = None
        self._last: _JoinSample | None = None
        self._looked_seconds = -_LOOK_EVERY_SECONDS

    def look(self, pid: int) -> Joining | None:
        """None if nothing is joined; the time restarts when the main thread has woken up."""
        now = time.monotonic()
        if now - self._looked_seconds >= _LOOK_EVERY_SECONDS:
            self._looked_seconds = now
            joined = joined_by_main(pid)
            self._last = None if joined is None else _JoinSample(now, joined)
            if joined is None or self._first is None or self._first.joined[:3] != joined[:3]:
                self._first = self._last
        return self._joining()

    def _joining(self) -> Joining | None:
        first, last = self._first, self._last
        if first is None or last is None:
            return None
        seconds = last.seconds - first.seconds
        num_asks = last.joined.thread_waits - first.joined.thread_waits
        return Joining(last.joined.name, seconds, num_asks / max(seconds, 1e-9))
