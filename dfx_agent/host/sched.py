"""What the kernel counts of one thread: ``/proc/PID/task/TID/schedstat`` and ``stat``.

The first two numbers of the line are nanoseconds, since the thread began, on a processor and
runnable without one: somebody else had it. The third is how often it was given one.
Source: Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import os

from dfx_agent.boot_clock import SECONDS_PER_TICK
from dfx_agent.facts.processor import SchedTimes, ThreadTimes
from dfx_agent.host.stat import MINOR_FAULTS, SYSTEM_TICKS, stat_fields


def times_by_thread(pid: int) -> dict[int, ThreadTimes]:
    """Of all threads that it has now, as far as the kernel counts."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    known = {thread: _fields(pid, thread) for thread in threads}
    return {
        thread: ThreadTimes(*map(int, fields[:3]))
        for thread, fields in known.items()
        if len(fields) >= 3 and all(field.isdigit() for field in fields[:3])
    }


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
    times = parse_schedstat(b" ".join(_fields(pid, thread)))
    fields = stat_fields(f"/proc/{pid}/task/{thread}/stat")
    if times is None or len(fields) <= SYSTEM_TICKS:
        return times
    system_ns = int(int(fields[SYSTEM_TICKS]) * SECONDS_PER_TICK * 1e9)
    return times._replace(system_ns=system_ns, num_faults=int(fields[MINOR_FAULTS]))


def _fields(pid: int, thread: int) -> list[bytes]:
    """Of its ``schedstat``; [] when it is gone."""
    try:
        with open(f"/proc/{pid}/task/{thread}/schedstat", "rb", buffering=0) as file:
            return file.read(128).split()
    except OSError:
        return []


def parse_schedstat(line: bytes) -> SchedTimes | None:
    """Of the text of a ``schedstat``; a kernel that does not count writes zeros."""
    fields = line.split()
    if len(fields) < 2 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    times = SchedTimes(int(fields[0]), int(fields[1]))
    return times if times.ran_ns else None
