"""What the kernel reports about a process that makes no progress.

Does it compute, poll or sleep, or is it stopped? ``moved_ns`` is the time of its last progress, on
the host's monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from dfx_agent.base.boot_clock import SECONDS_PER_TICK
from dfx_agent.facts.steps import ThreadTimes
from dfx_agent.node.host.processes import STATE, SYSTEM_TICKS, USER_TICKS, num_waits, stat_fields
from dfx_agent.node.host.processor_time import thread_times, times_by_thread
from dfx_agent.node.process import Process

_LOOK_EVERY_NS = 10**9
_IDLE_SECONDS, _IDLE_SHARE = 5.0, 0.02
_SEEN_SECONDS, _WORK_SHARE = 4.0, 0.5
_LEAST_SHARE = 0.02
# a computing thread runs until it is preempted; a polling thread yields within microseconds
_SHORTEST_TURN_NS = 500_000
_POLLS_PER_SECOND, _FEWEST_POLLS = 0.5, 5  # one or two wake-ups are no polling loop


class _MainThread(NamedTuple):
    """Counters of a main thread since it started, read at one instant."""

    time_ns: int
    cpu_seconds: float
    delayed_seconds: float  # runnable without a CPU; 0 if the kernel does not count it
    num_waits: int
    threads: Mapping[int, ThreadTimes] = MappingProxyType({})


class KernelLook:
    """State and CPU time of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.is_stopped = False
        # first check that found it stopped, last check that found it running
        self._stopped_ns = self._ran_ns = 0
        self._looked_ns = 0
        self._is_sleeping = False
        self._cpu_ticks = 0
        self._cpu_base = (0, 0)  # time, and clock ticks used by then
        # first and last check since its last progress
        self._main_thread = _MainThread(0, 0.0, 0.0, 0), _MainThread(0, 0.0, 0.0, 0)

    def look_at_state(self, now_ns: int, moved_ns: int) -> None:
        """Check whether it is stopped or asleep and how much it computed; once a second at most."""
        if self._looked_ns and now_ns - self._looked_ns < _LOOK_EVERY_NS:
            return
        self._looked_ns = now_ns
        state, ticks = _state(self._process) if self._process.state == "live" else ("?", 0)
        if state not in "Tt":
            self._ran_ns = now_ns
        elif not self.is_stopped:
            self._stopped_ns = now_ns
        self.is_stopped, self._is_sleeping = state in "Tt", state == "S"
        self._cpu_ticks = ticks
        if self._cpu_base[0] <= moved_ns or not self._is_sleeping:
            self._cpu_base = now_ns, ticks

    def is_stopped_since(self, moved_ns: int) -> bool:
        """Whether the last check found it stopped, and it has made no progress since."""
        return self.is_stopped and self._looked_ns > moved_ns

    def stopped_seconds(self, now_ns: int, moved_ns: int) -> float | None:
        """For how long it has been stopped; None unless it was seen running after its progress."""
        if not self.is_stopped or self._ran_ns <= moved_ns:
            return None
        return max(0, now_ns - self._stopped_ns) / 1e9

    def is_idle(self, now_ns: int) -> bool:
        """Whether it has slept since its last progress: no computing, no polling, no disk I/O."""
        begin_ns, ticks = self._cpu_base
        elapsed = (now_ns - begin_ns) / 1e9
        used = (self._cpu_ticks - ticks) * SECONDS_PER_TICK
        return self._is_sleeping and elapsed >= _IDLE_SECONDS and used <= _IDLE_SHARE * elapsed

    def is_at_work(self, moved_ns: int) -> bool:
        """Whether its main thread has computed or polled since its last progress."""
        seconds, ran, delayed, num_waits = self._since(moved_ns)
        if seconds < _SEEN_SECONDS:
            return False
        # a thread that was runnable without a CPU counts as computing
        has_computed = ran + delayed >= _WORK_SHARE * seconds
        return has_computed or num_waits >= max(_FEWEST_POLLS, _POLLS_PER_SECOND * seconds)

    def processor_share(self, moved_ns: int) -> float:
        """Share of the time that its threads were runnable in which they had a CPU, 0 to 1.

        The main thread counts, and threads that compute while the main thread may wait for them;
        the smallest share is returned. The result is 1 if no thread was runnable for half of the
        time. Polling threads do not count: on a busy host they queue for a CPU but compute nothing.
        """
        seconds, ran, delayed, _ = self._since(moved_ns)
        if seconds < _SEEN_SECONDS:
            return 1.0
        wanted = [(ran, delayed)]
        wanted += [
            (times.ran_ns / 1e9, times.delayed_ns / 1e9) for times in self._computing_threads()
        ]
        least = _WORK_SHARE * seconds
        shares = [ran / (ran + delayed) for ran, delayed in wanted if ran + delayed >= least]
        return max(_LEAST_SHARE, min(shares, default=1.0))

    def _computing_threads(self) -> list[ThreadTimes]:
        """Times of the computing threads between first and last check, without the main thread."""
        first, last = (look.threads for look in self._main_thread)
        nothing = ThreadTimes(0, 0, 0)
        others = [
            times.since(first.get(thread, nothing))
            for thread, times in last.items()
            if thread != self._process.pid
        ]
        return [
            times for times in others if times.ran_ns >= _SHORTEST_TURN_NS * max(1, times.num_turns)
        ]

    def _since(self, moved_ns: int) -> tuple[float, float, float, int]:
        """(seconds, ran, delayed, number of waits) since the first check after its progress."""
        first, last = self._main_thread
        if first.time_ns <= moved_ns:
            return 0.0, 0.0, 0.0, 0
        return (
            (last.time_ns - first.time_ns) / 1e9,
            last.cpu_seconds - first.cpu_seconds,
            last.delayed_seconds - first.delayed_seconds,
            last.num_waits - first.num_waits,
        )

    def look_at_main_thread(self, moved_ns: int) -> None:
        """Read the counters of the main thread; once a second at most."""
        first, last = self._main_thread
        is_due = time.monotonic_ns() - last.time_ns >= _LOOK_EVERY_NS
        if is_due and self._process.state == "live":
            now = _main_thread(self._process.pid)
            if now is not None:
                self._main_thread = now if first.time_ns <= moved_ns else first, now


def _main_thread(pid: int) -> _MainThread | None:
    """Counters read now; None if the kernel does not report them."""
    thread = f"/proc/{pid}/task/{pid}/"
    fields, waits = stat_fields(thread + "stat"), num_waits(thread + "status")
    if len(fields) <= SYSTEM_TICKS or waits is None:
        return None
    ticks = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
    had = thread_times(pid, pid)
    delayed_seconds = had.delayed_ns / 1e9 if had is not None else 0.0
    seconds = ticks * SECONDS_PER_TICK
    return _MainThread(time.monotonic_ns(), seconds, delayed_seconds, waits, times_by_thread(pid))


def _state(process: Process) -> tuple[str, int]:
    """(state letter R, S, D, T, …, clock ticks used); "?" if the kernel does not report it."""
    fields = stat_fields(f"/proc/{process.pid}/stat")
    if len(fields) <= SYSTEM_TICKS:
        return "?", 0
    return fields[STATE], int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
