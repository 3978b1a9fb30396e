"""What the kernel's scheduler let a thread have."""

from __future__ import annotations

from typing import NamedTuple


class SchedTimes(NamedTuple):
    """Nanoseconds on a processor, and runnable without one.

    ``crowd``: threads of the whole host for each of its processors meanwhile, None if unknown.
    ``system_ns`` of ``ran_ns`` in the kernel, which includes its ``num_faults`` page faults: 0
    where nobody counted them.
    """

    ran_ns: int
    delayed_ns: int
    crowd: float | None = None
    system_ns: int = 0
    num_faults: int = 0

    @property
    def share(self) -> float | None:
        """Of a processor while it could run, 0 to 1; None when it never wanted one."""
        wanted = self.ran_ns + self.delayed_ns
        return self.ran_ns / wanted if wanted > 0 else None


class ThreadTimes(NamedTuple):
    """The same of one thread, and in how many turns on a processor it ran."""

    ran_ns: int
    delayed_ns: int
    num_turns: int

    def since(self, before: ThreadTimes) -> ThreadTimes:
        """What was added since then."""
        ran_ns, delayed_ns, num_turns = map(int.__sub__, self, before)
        return ThreadTimes(ran_ns, delayed_ns, num_turns)
