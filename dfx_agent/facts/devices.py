"""Facts about devices: how they ran, and which events they reported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceState:
    """The devices of one rank over the last minute."""

    names: tuple[str, ...]
    """Such as "nvidia:3"."""
    clock_hertz: float | None
    throttled_ratio: float | None
    """Share of the time in which the clocks were reduced."""
    reasons: tuple[str, ...] = ()
    """Why the clocks were reduced."""


@dataclass(frozen=True, slots=True)
class Reported:
    """An event that a device reported."""

    device: str
    name: str
    """Such as "XID 79"."""
    meaning: str
    time_seconds: float
    """Unix time."""
    node: str = ""
    ranks: tuple[tuple[str, str], ...] = ()
    """(role, label) of the ranks that use the device."""
