"""Whether pids here are the host's, and whether a process is in a container that we are not in."""

from __future__ import annotations

import os

# the number of the first pid namespace of every kernel: linux/proc_ns.h, PROC_PID_INIT_INO
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


def sees_host_pids() -> bool:
    """Whether a pid here is the host's: not in a container with pids of its own."""
    return _number("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE


def is_in_container(pid: int) -> bool:
    """Whether it sees other files than we do; False where that may not be asked."""
    own, its = _number("/proc/self/ns/mnt"), _number(f"/proc/{pid}/ns/mnt")
    return own is not None and its is not None and own != its


def has_our_clocks(pid: int) -> bool:
    """Whether its monotonic clock is ours; True where that may not be asked."""
    own, its = _number("/proc/self/ns/time"), _number(f"/proc/{pid}/ns/time")
    return own == its or None in {own, its}


def _number(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
