"""What the kernel's scheduler counts of one thread: ``/proc/PID/task/TID/schedstat``.

The first two numbers of the line are nanoseconds, since the thread began, on a processor and
runnable without one: somebody else had it. Source: Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

from typing import NamedTuple


class SchedTimes(NamedTuple):
    """Nanoseconds on a processor, and runnable without one."""

    ran_ns: int
    delayed_ns: int

    @property
    def share(self) -> float | None:
        """Of a processor while it could run, 0 to 1; None when it never wanted one."""
        wanted = self.ran_ns + self.delayed_ns
        return self.ran_ns / wanted if wanted > 0 else None


def thread_times(pid: int, thread: int) -> SchedTimes | None:
    """None when the thread is gone, or the kernel does not count."""
    try:
        with open(f"/proc/{pid}/task/{thread}/schedstat", "rb", buffering=0) as file:
            return parse_schedstat(file.read(128))
    except OSError:
        return None


def parse_schedstat(line: bytes) -> SchedTimes | None:
    """Of the text of a ``schedstat``; a kernel that does not count writes zeros."""
    fields = line.split()
    if len(fields) < 2 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    times = SchedTimes(int(fields[0]), int(fields[1]))
    return times if times.ran_ns else None
