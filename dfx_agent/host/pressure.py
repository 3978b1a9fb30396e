"""How busy the whole machine is: processors of ``/proc/stat``, stalls of ``/proc/pressure``."""

from __future__ import annotations

_RESOURCES = ("cpu", "memory", "io")
_IDLE_FIELDS = 3, 4  # idle and iowait, behind the name
_NUM_FIELDS = 8  # guest time is in user time already


def busy_ticks(path: str = "/proc/stat") -> tuple[int, int] | None:
    """(busy, all) ticks of all processors since the boot."""
    try:
        with open(path, "rb") as file:
            name, *fields = file.readline().split()
        ticks = [int(field) for field in fields[:_NUM_FIELDS]]
    except (OSError, ValueError):
        return None
    if name != b"cpu" or len(ticks) <= max(_IDLE_FIELDS):
        return None
    return sum(ticks) - sum(ticks[n] for n in _IDLE_FIELDS), sum(ticks)


def stalled_ratios(root: str = "/proc/pressure") -> dict[str, dict[str, float]]:
    """Resource -> "some" or "full" -> share of the last 10 s; empty where the kernel has no PSI."""
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
