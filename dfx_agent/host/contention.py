"""How long the thread that trains could run and had no processor, over the steps of one process.

And how many threads of the host shared its processors meanwhile, as far as readings saw it.

The kernel counts since the thread began. It is asked at each reading, and what lies between two
readings is shared out evenly: right for steps longer than a reading, and for many short ones.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from dfx_agent.facts.processor import SchedTimes
from dfx_agent.host.sched import thread_times, threads_per_processor

_MOST_SAMPLES = 512
_SLACK_NS = 2 * 10**9  # before the first and after the last reading as next to it


class _Sample(NamedTuple):
    time_ns: int
    ran_ns: int
    delayed_ns: int
    crowd_ns: float  # the sum of threads for each processor over time
    system_ns: int
    num_faults: int


class ProcessorTimes:
    """What the kernel said of one thread, as far back as steps may need it."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._thread = 0, 0

    def look(self, now_ns: int, pid: int, thread: int) -> None:
        """Ask the kernel now; another thread than before begins anew."""
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
        if len(samples) > _MOST_SAMPLES:  # long steps need less
            del samples[1 : _MOST_SAMPLES // 2 : 2]

    def between(self, begin_ns: int, end_ns: int) -> SchedTimes | None:
        """What it had and was refused from ``begin_ns`` to ``end_ns``; None where nobody looked."""
        begin, end = self._at(begin_ns), self._at(end_ns)
        if begin is None or end is None:
            return None
        ran, delayed, crowd, system, faults = (
            max(0, b - a) for a, b in zip(begin, end, strict=True)
        )
        of_time = crowd / (end_ns - begin_ns) if end_ns > begin_ns else None
        return SchedTimes(ran, delayed, of_time, system, faults)

    def _at(self, time_ns: int) -> tuple[int, ...] | None:
        """The counters at that time, as in a sample."""
        samples = self._samples
        if len(samples) < 2:
            return None
        if not samples[0].time_ns - _SLACK_NS <= time_ns <= samples[-1].time_ns + _SLACK_NS:
            return None
        at = min(max(1, bisect_left(samples, (time_ns,))), len(samples) - 1)
        before, after = samples[at - 1], samples[at]
        share = (time_ns - before.time_ns) / max(1, after.time_ns - before.time_ns)
        return tuple(round(b + share * (a - b)) for b, a in zip(before[1:], after[1:], strict=True))
