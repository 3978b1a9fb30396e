"""Converts times that the kernel counts in clock ticks since boot to seconds.

It reads ``CLOCK_BOOTTIME``, because ``/proc/uptime`` is truncated to 10 ms. With that, a process
would seem to start up to 10 ms late, and a file that it opened at once would seem older.
"""

from __future__ import annotations

import os
import time

SECONDS_PER_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


def seconds_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def unix_seconds(ticks: int) -> float:
    """Unix time of a moment in ticks since boot, such as the start time of ``/proc/PID/stat``.

    The kernel truncates to whole ticks: the moment was up to one tick later.
    """
    return time.time() - seconds_since_boot() + ticks * SECONDS_PER_TICK


def is_modified_since(modified_seconds: float, start_ticks: int) -> bool:
    """Whether a file was modified after a process began.

    Files carry the time of the kernel's last timer interrupt, up to one tick before the present.
    """
    return modified_seconds >= unix_seconds(start_ticks) - SECONDS_PER_TICK
