"""What the kernel's scheduler counts of one thread: ``/proc/PID/task/TID/schedstat``.

The first two numbers of the line are nanoseconds, since the thread began, on a processor and
runnable without one: somebody else had it. Source: Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import os

from dfx_agent.facts.processor import SchedTimes

NOTHING_COUNTED = SchedTimes(0, 0)


def process_times(pid: int) -> SchedTimes:
    """Of all threads that it has now, as far as the kernel counts."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return NOTHING_COUNTED
    known = [times for thread in threads if (times := thread_times(pid, thread)) is not None]
    return SchedTimes(sum(t.ran_ns for t in known), sum(t.delayed_ns for t in known))


def threads_per_processor() -> float | None:
    """Threads of this host that run or want to, for each of its processors; None if untold.

    The fourth field of /proc/loadavg, without the thread that asks. Source: man 5 proc_loadavg.
    """
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            running = file.read(128).split()[3].partition(b"/")[0]
        return max(0, int(running) - 1) / (os.cpu_count() or 1)
    except (OSError, IndexError, ValueError):
        return None


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
