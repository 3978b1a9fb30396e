"""Measurements of one process that no judge compares: they only fill the row of its rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dfx_agent.facts.seat import ProcessId
from dfx_agent.snapshot import (
    CollectiveTime,
    DeviceMemory,
    EventLoopRow,
    GroupRow,
    HeldMemory,
    HostMemory,
    NonAllocatorMemory,
    OutsideLook,
    ScalarRow,
    StageDevice,
    StageStamp,
    TimeSplit,
    WorkRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotals:
    """Totals and memory of one rank. A node sends them to a hub, at most once in some seconds.

    Field names are those of ``RankRow``.
    """

    process: ProcessId
    totals: TimeSplit = field(default_factory=TimeSplit)
    """Where its time went since it was first seen, including earlier attempts."""
    tokens_total: Mapping[str, float] = field(default_factory=dict)
    """Tokens by kind."""
    counters_total: Mapping[str, float] = field(default_factory=dict)
    policy_version: int | None = None
    num_records: int = 0
    num_lost_records: int = 0
    num_late_records: int = 0
    num_guest_drops: int = 0
    num_earlier_records: int = 0
    """Records that were overwritten before its agent began to read."""
    host_memory: HostMemory | None = None
    devices: tuple[DeviceMemory, ...] = ()
    """Devices of its framework's allocator."""
    device_names: tuple[str, ...] = ()
    """Devices of the machine that it uses."""
    device_bytes: Mapping[str, float] = field(default_factory=dict)
    """Memory that the driver reports for it, by device."""
    held: tuple[HeldMemory, ...] = ()
    beside_allocator: NonAllocatorMemory | None = None
    groups: tuple[GroupRow, ...] = ()
    """Its process groups, as its guest counts them."""
    event_loop: EventLoopRow | None = None
    """None for a process that has ended."""
    work: WorkRow | None = None
    """FLOPs of its latest step that has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDetails:
    """Measurements that stay on the node: a hub requests them for ranks that a page shows.

    Field names are those of ``RankRow``.
    """

    current: TimeSplit = field(default_factory=TimeSplit)
    last: TimeSplit | None = None
    """Of its last step, even if other ranks have not passed that step."""
    scalars: tuple[ScalarRow, ...] = ()
    stamps: tuple[StageStamp, ...] = ()
    gauges: Mapping[str, float] = field(default_factory=dict)
    collectives: tuple[CollectiveTime, ...] = ()
    device_stages: tuple[StageDevice, ...] = ()
    outside: OutsideLook | None = None
