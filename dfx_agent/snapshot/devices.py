"""Contract 2: a device of this machine as it says of itself, whoever uses it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """``device`` is its name on this machine, as in "host" or "cuda:0".

    ``available_bytes``: what it could still give out; None is what it does not tell.
    """

    device: str
    total_bytes: int | None = None
    available_bytes: int | None = None
