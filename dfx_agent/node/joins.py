"""Whether a main thread waits for a thread of its own process to end, and for how long."""

from __future__ import annotations

import time
from typing import NamedTuple

from dfx_agent.facts.rank import Joining
from dfx_agent.node.host.joined_thread import Joined, joined_by_main

_LOOK_EVERY_SECONDS = 1.0


class _Look(NamedTuple):
    seconds: float
    joined: Joined


class JoinWatch:
    """Of one process; ``look`` while it is quiet, at most once a second at the kernel."""

    def __init__(self) -> None:
        self._first: _Look | None = None
        self._last: _Look | None = None
        self._looked_seconds = -_LOOK_EVERY_SECONDS

    def look(self, pid: int) -> Joining | None:
        """None where it joins nothing; anew where the main thread has woken up."""
        now = time.monotonic()
        if now - self._looked_seconds >= _LOOK_EVERY_SECONDS:
            self._looked_seconds = now
            joined = joined_by_main(pid)
            self._last = None if joined is None else _Look(now, joined)
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
