"""How much CPU time the kernel's scheduler gave a thread."""

from __future__ import annotations

from typing import NamedTuple


class SchedTimes(NamedTuple):
    """Scheduler times of a thread over some period."""

    ran_ns: int
    """Time on a CPU."""
    delayed_ns: int
    """Time in which it was runnable without a CPU."""
    crowd: float | None = None
    """Runnable threads per CPU of the host in that time; None if unknown."""
    system_ns: int = 0
    """Part of ``ran_ns`` in the kernel, including page faults; 0 if unknown."""
    num_faults: int = 0
    """Number of page faults."""

    @property
    def share(self) -> float | None:
        """Share of its runnable time on a CPU, 0 to 1; None if it was never runnable."""
        wanted = self.ran_ns + self.delayed_ns
        return self.ran_ns / wanted if wanted > 0 else None


class ThreadTimes(NamedTuple):
    """Scheduler times of one thread since its start."""

    ran_ns: int
    delayed_ns: int
    num_turns: int
    """How often it was scheduled on a CPU."""

    def since(self, before: ThreadTimes) -> ThreadTimes:
        """The difference to an earlier reading."""
        ran_ns, delayed_ns, num_turns = map(int.__sub__, self, before)
        return ThreadTimes(ran_ns, delayed_ns, num_turns)
