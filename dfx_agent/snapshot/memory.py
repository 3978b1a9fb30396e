"""Contract 2: memory that a rank uses on its host and its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The framework's allocator of one device; ``stage_*`` are sampled by the guest."""

    device: str
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    limit_bytes: float | None = None
    num_alloc_retries: float | None = None
    num_ooms: float | None = None
    stage_peak_bytes: Mapping[str, float] = field(default_factory=dict)
    """Highest allocated bytes in each stage."""
    active_bytes: float | None = None
    inactive_split_bytes: float | None = None
    """Free pieces of blocks that are partly in use."""
    largest_free_bytes: float | None = None
    """The largest free piece."""
    stage_allocated_bytes: Mapping[str, float] = field(default_factory=dict)
    """Allocated bytes at the last sample in each stage."""
    stage_reserved_bytes: Mapping[str, float] = field(default_factory=dict)
    stage_num_alloc_retries: Mapping[str, float] = field(default_factory=dict)
    stage_num_ooms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NonAllocatorMemory:
    """Memory that the driver reports for a process, minus what its allocators hold.

    It contains the context, buffers of communicators and workspaces of libraries.
    """

    now_bytes: float
    least_bytes: float
    """The lowest value seen; it contains the context."""
    most_bytes: float = 0.0
    """The highest value seen."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Memory when model states were last loaded to a device or offloaded, in one stage."""

    stage: str
    point: str
    """As in ROLL: "start/offload" before loading, "start/onload" after it, "end/onload" before
    offloading, "end/offload" after it."""
    device: str
    """"host" for the process itself."""
    allocated_bytes: float | None = None
    """Of the device's allocator."""
    reserved_bytes: float | None = None
    """Of the device's allocator."""
    resident_bytes: float | None = None
    """Of the process."""
    virtual_bytes: float | None = None
    """Of the process."""


@dataclass(frozen=True, slots=True)
class GlibcHeap:
    """glibc's malloc in one process, without Python's small objects."""

    used_bytes: float
    """Allocated bytes, including thread caches and single mappings."""
    retained_bytes: float | None
    """Freed bytes that still occupy memory; None if the mappings cannot be read."""
    trimmable_bytes: float | None
    """Whole pages of ``retained_bytes``, which malloc_trim(0) would return to the kernel."""


@dataclass(frozen=True, slots=True)
class MemoryHistory:
    """Host memory of one rank over its steps, with the limit that it shares."""

    role: str
    rank: str
    steps: tuple[int, ...]
    """The latest 64 steps, and every eighth of earlier ones."""
    anonymous_bytes: tuple[float, ...]
    """At the end of each of ``steps``."""
    free_bytes: float | None = None
    """What is left until the closest limit, of its control group or of the host."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory of one process."""

    anonymous_bytes: float
    slope_bytes_per_step: float | None = None
    """None before enough steps."""
    heap: GlibcHeap | None = None
    """None if the guest does not read glibc's statistics."""
    resident_bytes: float | None = None
    """Including file pages."""
    virtual_bytes: float | None = None
    """All mapped memory."""
    stage_resident_bytes: Mapping[str, float] = field(default_factory=dict)
    """At the last sample in each stage."""
    stage_virtual_bytes: Mapping[str, float] = field(default_factory=dict)
    """At the last sample in each stage."""
