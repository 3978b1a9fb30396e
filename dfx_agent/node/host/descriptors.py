"""How many descriptors the agent keeps open for the ranks it follows: never the last ones.

An agent may be given a few hundred, of which the server and its connections need some. Ranks beyond
the share are read by opening their file each time, which costs 10 us more of a look.
"""

from __future__ import annotations

import resource
import threading

_MAX_KEPT = 1024


class Allowance:
    """At most ``num_allowed`` at one time, over all threads."""

    def __init__(self, num_allowed: int) -> None:
        self._num_free = num_allowed
        self._lock = threading.Lock()

    def take(self, num: int) -> bool:
        """All of them, or none."""
        with self._lock:
            is_granted = num <= self._num_free
            self._num_free -= num if is_granted else 0
        return is_granted

    def give_back(self, num: int) -> None:
        with self._lock:
            self._num_free += num


def of_this_process() -> Allowance:
    """Half of the soft limit, at most 1,024."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Allowance(_MAX_KEPT if soft == resource.RLIM_INFINITY else min(_MAX_KEPT, soft // 2))
