"""Limits how many file descriptors the agent holds open for the ranks that it follows.

An agent may have only a few hundred descriptors, and its server needs some of them. For ranks
beyond the limit the file is opened for each poll, which costs 10 µs more.
"""

from __future__ import annotations

import resource
import threading

_MAX_OPEN = 1024


class Allowance:
    """At most ``num_allowed`` descriptors at a time, over all threads."""

    def __init__(self, num_allowed: int) -> None:
        self._num_free = num_allowed
        self._lock = threading.Lock()

    def take(self, num: int) -> bool:
        """Reserve ``num`` descriptors. Returns False, and reserves none, if fewer are free."""
        with self._lock:
            is_granted = num <= self._num_free
            self._num_free -= num if is_granted else 0
        return is_granted

    def give_back(self, num: int) -> None:
        """Return reserved descriptors."""
        with self._lock:
            self._num_free += num


def process_allowance() -> Allowance:
    """Half of this process's soft limit, at most 1,024."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Allowance(_MAX_OPEN if soft == resource.RLIM_INFINITY else min(_MAX_OPEN, soft // 2))
