"""Detects Ray workers on this machine, and whether Ray itself ended a worker.

A worker writes "exit_type=INTENDED_SYSTEM_EXIT" or "INTENDED_USER_EXIT" to its own log before it
ends because of ``ray.kill``, ``exit_actor``, a deleted handle, or an exited owner (Ray 2.60).
"""

from __future__ import annotations

import os
from contextlib import suppress

_LOG = "/python-core-worker-"
_INTENDED = b"exit_type=INTENDED_"
_TAIL_BYTES = 64 * 1024


class RayWorker:
    """One process; created while the process runs."""

    def __init__(self, pid: int, *, is_living: bool) -> None:
        self.is_one = is_living and _has_name_of_ray(pid)
        self.was_ended_by_ray = False
        self._log = _log_of(pid) if self.is_one else ""

    def resume(self, *, is_one: bool, was_ended_by_ray: bool) -> None:
        """Restore what an earlier agent recorded."""
        self.is_one, self.was_ended_by_ray = is_one, was_ended_by_ray

    def note_end(self) -> None:
        """After the process has ended: read the reason from its log, once."""
        if self._log:
            self.was_ended_by_ray, self._log = _INTENDED in _tail(self._log), ""


def _has_name_of_ray(pid: int) -> bool:
    """Whether Ray has named this process: "ray::Actor.method", "ray::IDLE"."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().startswith(b"ray::")
    except OSError:
        return False


def _log_of(pid: int) -> str:
    """The log that the worker has open; "" if it is not visible."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for number in os.listdir(folder):
            with suppress(OSError):
                target = os.readlink(f"{folder}/{number}")
                if _LOG in target and target.endswith(".log"):
                    return target
    return ""


def _tail(path: str) -> bytes:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            size = os.fstat(fd).st_size
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES)
    return b""
