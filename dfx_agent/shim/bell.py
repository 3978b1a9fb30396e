"""Wakes the guest when an agent asks it to leave; without it the guest would look once a second.

A thread stands in ``open`` of a FIFO until somebody opens the other end: it takes no time and holds
no file until then, so nothing of it can be closed, inherited or mistaken for one of the job's. It
rings once; where there can be no FIFO, it never does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

BELL_SUFFIX = ".bell"

_NUM_TRIES = 20
_BETWEEN_TRIES_SECONDS = 0.01


class Bell:
    """One thread, from now until it has rung or is closed; ``path`` is the FIFO's."""

    def __init__(self, path: str, ring: Callable[[], object]) -> None:
        self._path = path
        self._ring = ring
        self._thread = threading.Thread(target=self._wait, name="dfx-bell", daemon=True)
        try:
            os.mkfifo(path, 0o600)
        except OSError:
            return
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the FIFO; at most a moment late."""
        for _ in range(_NUM_TRIES):  # it may be just about to open
            if not self._thread.is_alive():
                break
            ring(self._path)
            self._thread.join(_BETWEEN_TRIES_SECONDS)
        try:
            os.unlink(self._path)
        except OSError:
            return

    def _wait(self) -> None:
        try:
            os.close(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError:
            return
        self._ring()


def ring(path: str) -> None:
    """Wake who waits there; nothing when nobody does."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        os.close(os.open(path, flags))
    except OSError:
        return
