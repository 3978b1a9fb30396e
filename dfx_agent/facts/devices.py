"""What a judge is told of devices: how they ran beside a rank, and what they reported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The devices of one rank over the last minute; ``names`` as in "nvidia:3".

    ``throttled_ratio``: share of the time in which their clocks were held down, for ``reasons``.
    """

    names: tuple[str, ...]
    clock_hertz: float | None
    throttled_ratio: float | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reported:
    """An event of a device, as in "XID 79"; ``ranks``: labels of those that use it, by role."""

    device: str
    name: str
    meaning: str
    time_seconds: float
    node: str = ""
    ranks: tuple[tuple[str, str], ...] = ()
