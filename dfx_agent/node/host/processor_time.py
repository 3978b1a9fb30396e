"""CPU time of one thread, of the training thread in each step, and of the whole machine.

``/proc/PID/task/TID/schedstat`` counts since the thread started: nanoseconds on a CPU, nanoseconds
runnable without a CPU, and how often the thread got a CPU. It is read at each poll, and values
between two polls are interpolated. That is accurate for steps longer than a poll interval, and on
average for many short ones. Source: Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from typing import NamedTuple

from dfx_agent.base.boot_clock import SECONDS_PER_TICK
from dfx_agent.facts.steps import SchedTimes, ThreadTimes
from dfx_agent.node.host.processes import MINOR_FAULTS, SYSTEM_TICKS, stat_fields

_RESOURCES = ("cpu", "memory", "io")
_IDLE_FIELDS = 3, 4  # idle and iowait, after the name
_NUM_FIELDS = 8  # user time already includes guest time
_MOST_SAMPLES = 512
_SLACK_NS = 2 * 10**9  # extrapolate by this much before the first and after the last sample


class _Sample(NamedTuple):
    time_ns: int
    ran_ns: int
    delayed_ns: int
    crowd_ns: float  # integral of runnable threads per CPU over time
    system_ns: int
    num_faults: int


class ProcessorTimes:
    """Samples of one thread's CPU time, as far back as open steps need them."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._thread = 0, 0

    def look(self, now_ns: int, pid: int, thread: int) -> None:
        """Read the counters now. Samples are cleared if the thread has changed."""
        times = thread_times(pid, thread)
        if times is not None:
            times = times._replace(crowd=threads_per_processor())
            self.add(now_ns, times, (pid, thread))

    def add(self, now_ns: int, times: SchedTimes, thread: tuple[int, int] = (0, 0)) -> None:
        samples = self._samples
        if thread != self._thread:
            self._thread = thread
            samples.clear()
        before = samples[-1] if samples else _Sample(now_ns, 0, 0, 0.0, 0, 0)
        crowd_ns = before.crowd_ns + (times.crowd or 0.0) * (now_ns - before.time_ns)
        ran_ns, delayed_ns, _, system_ns, num_faults = times
        samples.append(_Sample(now_ns, ran_ns, delayed_ns, crowd_ns, system_ns, num_faults))
        if len(samples) > _MOST_SAMPLES:  # long steps need fewer samples
            del samples[1 : _MOST_SAMPLES // 2 : 2]

    def between(self, begin_ns: int, end_ns: int) -> SchedTimes | None:
        """CPU time from ``begin_ns`` to ``end_ns``; None if there are no samples of that time."""
        begin, end = self._at(begin_ns), self._at(end_ns)
        if begin is None or end is None:
            return None
        ran, delayed, crowd, system, faults = (
            max(0, b - a) for a, b in zip(begin, end, strict=True)
        )
        of_time = crowd / (end_ns - begin_ns) if end_ns > begin_ns else None
        return SchedTimes(ran, delayed, of_time, system, faults)

    def _at(self, time_ns: int) -> tuple[int, ...] | None:
        """The counters at that time, interpolated."""
        samples = self._samples
        if len(samples) < 2:
            return None
        if not samples[0].time_ns - _SLACK_NS <= time_ns <= samples[-1].time_ns + _SLACK_NS:
            return None
        at = min(max(1, bisect_left(samples, (time_ns,))), len(samples) - 1)
        before, after = samples[at - 1], samples[at]
        share = (time_ns - before.time_ns) / max(1, after.time_ns - before.time_ns)
        return tuple(round(b + share * (a - b)) for b, a in zip(before[1:], after[1:], strict=True))


def times_by_thread(pid: int) -> dict[int, ThreadTimes]:
    """Times of all current threads of a process, as far as the kernel counts them."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    fields_by_thread = {thread: _fields(pid, thread) for thread in threads}
    return {
        thread: ThreadTimes(*map(int, fields[:3]))
        for thread, fields in fields_by_thread.items()
        if len(fields) >= 3 and all(field.isdigit() for field in fields[:3])
    }


def threads_per_processor() -> float | None:
    """Runnable threads of this host per CPU; None if not reported.

    The fourth field of /proc/loadavg, without the reading thread. Source: man 5 proc_loadavg.
    """
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            running = file.read(128).split()[3].partition(b"/")[0]
        return max(0, int(running) - 1) / (os.cpu_count() or 1)
    except (OSError, IndexError, ValueError):
        return None


def thread_times(pid: int, thread: int) -> SchedTimes | None:
    """None if the thread is gone, or the kernel does not count."""
    times = parse_schedstat(b" ".join(_fields(pid, thread)))
    fields = stat_fields(f"/proc/{pid}/task/{thread}/stat")
    if times is None or len(fields) <= SYSTEM_TICKS:
        return times
    system_ns = int(int(fields[SYSTEM_TICKS]) * SECONDS_PER_TICK * 1e9)
    return times._replace(system_ns=system_ns, num_faults=int(fields[MINOR_FAULTS]))


def _fields(pid: int, thread: int) -> list[bytes]:
    """Fields of the thread's ``schedstat``; [] if the thread is gone."""
    try:
        with open(f"/proc/{pid}/task/{thread}/schedstat", "rb", buffering=0) as file:
            return file.read(128).split()
    except OSError:
        return []


def parse_schedstat(line: bytes) -> SchedTimes | None:
    """Parse the text of a ``schedstat`` file; a kernel that does not count writes zeros."""
    fields = line.split()
    if len(fields) < 2 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    times = SchedTimes(int(fields[0]), int(fields[1]))
    return times if times.ran_ns else None


def busy_ticks() -> tuple[int, int] | None:
    """(busy, total) ticks of all CPUs since the boot."""
    try:
        with open("/proc/stat", "rb") as file:
            name, *fields = file.readline().split()
        ticks = [int(field) for field in fields[:_NUM_FIELDS]]
    except (OSError, ValueError):
        return None
    if name != b"cpu" or len(ticks) <= max(_IDLE_FIELDS):
        return None
    return sum(ticks) - sum(ticks[n] for n in _IDLE_FIELDS), sum(ticks)


def stalled_ratios(root: str = "/proc/pressure") -> dict[str, dict[str, float]]:
    """Resource -> "some" or "full" -> share of the last 10 s; empty if the kernel has no PSI."""
    found: dict[str, dict[str, float]] = {}
    for resource in _RESOURCES:
        try:
            with open(f"{root}/{resource}", encoding="ascii", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        for line in text.splitlines():
            kind, _, rest = line.partition(" avg10=")
            share = rest.partition(" ")[0]
            if kind in {"some", "full"} and share.replace(".", "", 1).isdecimal():
                found.setdefault(resource, {})[kind] = float(share) / 100
    return found
