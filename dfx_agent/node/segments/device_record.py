"""Collectives as the stream of a rank's device stood for them: what a record of the guest says."""

from __future__ import annotations

from typing import NamedTuple


class DeviceTime(NamedTuple):
    """One collective as one rank's device saw it.

    ``duration_ns`` since the stream of this rank arrived, ``stood_ns`` of that a stream stood for
    it: all where the host did nothing between issue and wait.
    """

    operation: str
    group: str
    sequence: int
    parent: int
    duration_ns: int
    stood_ns: int


def device_time(name: str, fields: tuple[int, int, float, int, int, int]) -> DeviceTime | None:
    """From a record's name and (t0, t1, value, step, span, parent); None when it makes no sense."""
    t0, t1, stood_seconds, sequence, _, parent = fields
    duration_ns = t1 - t0
    if sequence < 0 or not 0 <= stood_seconds * 1e9 <= duration_ns + 1e3:  # NaN is not either
        return None
    operation, _, group = name.rpartition("@")
    stood_ns = min(round(stood_seconds * 1e9), duration_ns)
    return DeviceTime(operation, group, sequence, parent, duration_ns, stood_ns)
