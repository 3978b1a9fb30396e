"""``/proc/PID/stat``, and that of a thread: proc(5)."""

from __future__ import annotations

# indices behind the name
STATE, USER_TICKS, SYSTEM_TICKS, START_TICKS = 0, 11, 12, 19


def stat_fields(path: str) -> list[str]:
    """Fields after the name, which may hold anything; empty when the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []
