"""What records of a guest say beside spans: one shape and one parse for each kind.

A record may be anybody's bytes: what makes no sense is None, and counted by who reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE_WAIT,
    DEVICE_TIME,
    FAILED,
    KIND_MASK,
    LEDGER,
    LOOP_KINDS,
    LOOP_LAG,
)

# t0, t1, value, step, span, parent
SixFields = tuple[int, int, float, int, int, int]

# what is counted goes up, by no more than this at once: no sum of it leaves the finite numbers
MOST = 2.0**63


class Collective(NamedTuple):
    """One collective, or one wait for one, as one rank's host saw it.

    ``sequence`` is the group's number, None when it is unknown. ``is_blocking``: at ``end_ns`` the
    collective was over; otherwise it had only been issued, or (``is_wait``) was waited for later.
    ``span`` is 0 when the time belongs to the explicit wait around it.
    """

    operation: str
    group: str
    sequence: int | None
    begin_ns: int
    end_ns: int
    num_bytes: float
    span: int
    parent: int
    is_blocking: bool
    is_wait: bool
    has_failed: bool


@dataclass
class Group:
    """A process group as its rank last reported it; ``first_enqueued`` when it was first seen."""

    first_enqueued: int
    num_enqueued: int
    num_completed: int | None


class LedgerRecord(NamedTuple):
    """One number about a batch; ``name`` is "boundary/column", ``field`` as in LEDGER_FIELDS.

    ``crossing`` numbers the batches of a process, each has ``num_records``.
    """

    name: str
    field: int
    value: float
    step: int
    crossing: int
    num_records: int
    time_ns: int


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


class LoopLag(NamedTuple):
    """An answer of an event loop, and how long it took.

    With ``held_by`` there is none by ``end_ns``.
    """

    end_ns: int
    seconds: float
    step: int
    held_by: str = ""


class LoopHeld(NamedTuple):
    """Who kept an event loop from answering, for so much of the time from begin to end."""

    name: str
    begin_ns: int
    end_ns: int
    seconds: float


WideRecord = Collective | LedgerRecord | DeviceTime | LoopLag | LoopHeld


def wide_record(flagged: int, text: str, fields: SixFields, thread: int) -> WideRecord | None:
    """Of a kind that uses every field. A collective of strange size has -1 bytes."""
    kind = flagged & KIND_MASK
    if kind == LEDGER:
        return _ledger_record(text, fields, thread)
    if kind in LOOP_KINDS:
        return _loop_record(flagged, text, fields)
    return device_time(text, fields) if kind == DEVICE_TIME else _collective(flagged, text, fields)


def _ledger_record(text: str, fields: SixFields, thread: int) -> LedgerRecord | None:
    t0, _, value, step, crossing, num_records = fields
    if not abs(value) <= MOST:  # NaN is not either: no count and no checksum
        return None
    return LedgerRecord(text, thread, value, step, crossing, num_records, t0)


def _collective(flagged: int, text: str, fields: SixFields) -> Collective:
    t0, t1, value, step, span, parent = fields
    operation, _, group = text.rpartition("@")
    is_wait = flagged & KIND_MASK == COLLECTIVE_WAIT
    return Collective(
        operation, group, step if step >= 0 else None, t0, t1,
        value if 0.0 <= value <= MOST else -1.0, span, parent, bool(flagged & BLOCKING), is_wait,
        bool(flagged & FAILED),
    )  # fmt: skip


def _loop_record(flagged: int, text: str, fields: SixFields) -> LoopLag | LoopHeld | None:
    t0, t1, seconds, step, _, _ = fields
    if not 0.0 <= seconds <= (t1 - t0) / 1e9 + 1e-6:  # NaN is not either
        return None
    if flagged & KIND_MASK != LOOP_LAG:
        return LoopHeld(text, t0, t1, seconds)
    return LoopLag(t1, seconds, step, text if flagged & FAILED else "")


def device_time(name: str, fields: SixFields) -> DeviceTime | None:
    """From a record's name and (t0, t1, value, step, span, parent); None when it makes no sense."""
    t0, t1, stood_seconds, sequence, _, parent = fields
    duration_ns = t1 - t0
    if sequence < 0 or not 0 <= stood_seconds * 1e9 <= duration_ns + 1e3:  # NaN is not either
        return None
    operation, _, group = name.rpartition("@")
    stood_ns = min(round(stood_seconds * 1e9), duration_ns)
    return DeviceTime(operation, group, sequence, parent, duration_ns, stood_ns)
