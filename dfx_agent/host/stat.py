"""``/proc/PID/stat``, and that of a thread: proc(5)."""

from __future__ import annotations

# indices behind the name
STATE, PARENT, GROUP, MINOR_FAULTS, USER_TICKS, SYSTEM_TICKS = 0, 1, 2, 7, 11, 12
START_TICKS, EXIT_STATUS = 19, 49


def num_waits(path: str) -> int | None:
    """How often the thread of this ``status`` file gave up its processor to wait for something."""
    try:
        with open(path, "rb") as file:
            _, found, rest = file.read().partition(b"\nvoluntary_ctxt_switches:")
    except OSError:
        return None
    return int(rest.split(None, 1)[0]) if found else None


def stat_fields(path: str) -> list[str]:
    """Fields after the name, which may hold anything; empty when the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []
