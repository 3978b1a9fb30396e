"""Contract 2: what a rank uses of its host and of its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The framework allocator of one device.

    ``stage_*`` are by own sampling: of each stage the highest allocated, and what was allocated and
    reserved when it was last seen. ``inactive_split_bytes`` are pieces of blocks that are in use in
    part; ``largest_free_bytes`` is the largest piece that is free.
    """

    device: str
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    limit_bytes: float | None = None
    num_alloc_retries: float | None = None
    num_ooms: float | None = None
    stage_peak_bytes: Mapping[str, float] = field(default_factory=dict)
    active_bytes: float | None = None
    inactive_split_bytes: float | None = None
    largest_free_bytes: float | None = None
    stage_allocated_bytes: Mapping[str, float] = field(default_factory=dict)
    stage_reserved_bytes: Mapping[str, float] = field(default_factory=dict)
    stage_num_alloc_retries: Mapping[str, float] = field(default_factory=dict)
    stage_num_ooms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BesideAllocator:
    """What the driver says that a process has on its devices, less what its allocators hold.

    That is the context, buffers of communicators and workspaces of libraries. ``least_bytes``: the
    least that was seen of it, which has the context in it.
    """

    now_bytes: float
    least_bytes: float


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What was held when states were last brought to a device or taken off it, within a stage.

    ``point``, as ROLL calls it: "start/offload" before they come, "start/onload" after,
    "end/onload" before they go, "end/offload" after. ``device`` is "host" for the process itself,
    of which ``resident_bytes`` and ``virtual_bytes`` are; the others are of the allocator.
    """

    stage: str
    point: str
    device: str
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    resident_bytes: float | None = None
    virtual_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class GlibcHeap:
    """glibc's malloc in one process. Python's small objects are not in it.

    ``used_bytes`` are given out, in the caches of threads too, or mapped one by one. Of what was
    freed ``retained_bytes`` still are in memory, and ``trimmable_bytes`` of these are whole pages:
    what malloc_trim(0) would give back. None where the process' mappings cannot be read.
    """

    used_bytes: float
    retained_bytes: float | None
    trimmable_bytes: float | None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Anonymous memory of one process; the slope is None until enough steps were seen.

    ``heap`` is None where the guest does not ask glibc. ``resident_bytes`` counts pages of files
    too, ``virtual_bytes`` all that is mapped; ``stage_*``: when the stage was last sampled.
    """

    anonymous_bytes: float
    slope_bytes_per_step: float | None = None
    heap: GlibcHeap | None = None
    resident_bytes: float | None = None
    virtual_bytes: float | None = None
    stage_resident_bytes: Mapping[str, float] = field(default_factory=dict)
    stage_virtual_bytes: Mapping[str, float] = field(default_factory=dict)
