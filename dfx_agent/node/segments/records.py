"""Parses the guest's records that are no spans.

The bytes of a segment cannot be trusted: a record that makes no sense is returned as None, and the
caller counts it.
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

# largest value accepted for a counter: no sum of such values becomes infinite
MOST = 2.0**63


class Collective(NamedTuple):
    """One collective, or one wait for a collective, as the host of one rank recorded it."""

    operation: str
    group: str
    sequence: int | None  # sequence number in the group, None if unknown
    begin_ns: int
    end_ns: int
    num_bytes: float
    span: int  # 0 if the time belongs to the explicit wait around it
    parent: int
    is_blocking: bool  # True: completed at end_ns; False: only issued by then
    is_wait: bool  # a later wait for asynchronous work
    has_failed: bool


@dataclass
class GroupCounts:
    """A process group's counters as its rank last reported them."""

    first_enqueued: int  # num_enqueued when the group was first seen
    num_enqueued: int
    num_completed: int | None


class LedgerRecord(NamedTuple):
    """One number about a batch that crossed a worker boundary."""

    name: str  # "boundary/column"
    field: int  # index into LEDGER_FIELDS
    value: float
    step: int
    crossing: int  # number of the batch within the process
    num_records: int  # records of this batch
    time_ns: int


class DeviceTime(NamedTuple):
    """One collective as the device of one rank measured it."""

    operation: str
    group: str
    sequence: int
    parent: int
    duration_ns: int  # since this rank's stream arrived
    stood_ns: int  # time of that in which a stream stalled


class LoopLag(NamedTuple):
    """Lag of an event loop in answering one probe."""

    end_ns: int
    seconds: float
    step: int
    held_by: str = ""  # code that still blocks the loop at end_ns; "" if the loop has answered


class LoopHeld(NamedTuple):
    """Code that blocked an event loop for ``seconds`` of the time between begin and end."""

    name: str
    begin_ns: int
    end_ns: int
    seconds: float


WideRecord = Collective | LedgerRecord | DeviceTime | LoopLag | LoopHeld


def wide_record(flagged: int, text: str, fields: SixFields, thread: int) -> WideRecord | None:
    """Parse a record that uses every field. A collective with an invalid size gets -1 bytes."""
    kind = flagged & KIND_MASK
    if kind == LEDGER:
        return _ledger_record(text, fields, thread)
    if kind in LOOP_KINDS:
        return _loop_record(flagged, text, fields)
    return device_time(text, fields) if kind == DEVICE_TIME else _collective(flagged, text, fields)


def _ledger_record(text: str, fields: SixFields, thread: int) -> LedgerRecord | None:
    t0, _, value, step, crossing, num_records = fields
    if not abs(value) <= MOST:  # also rejects NaN, which is no count and no checksum
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
    if not 0.0 <= seconds <= (t1 - t0) / 1e9 + 1e-6:  # also rejects NaN
        return None
    if flagged & KIND_MASK != LOOP_LAG:
        return LoopHeld(text, t0, t1, seconds)
    return LoopLag(t1, seconds, step, text if flagged & FAILED else "")


def device_time(name: str, fields: SixFields) -> DeviceTime | None:
    """Parse (t0, t1, value, step, span, parent); None if the values make no sense."""
    t0, t1, stood_seconds, sequence, _, parent = fields
    duration_ns = t1 - t0
    if sequence < 0 or not 0 <= stood_seconds * 1e9 <= duration_ns + 1e3:  # also rejects NaN
        return None
    operation, _, group = name.rpartition("@")
    stood_ns = min(round(stood_seconds * 1e9), duration_ns)
    return DeviceTime(operation, group, sequence, parent, duration_ns, stood_ns)
