"""Memory of a process over its steps, and the limits that apply to it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from dfx_agent.facts.seat import ProcessId
from dfx_agent.snapshot import GlibcHeap

Samples = tuple[tuple[int, float], ...]  # (step, bytes), steps rising


_IN_A_ROW = 4


def highest_before(step: int, *samples: Samples) -> float | None:
    """Highest memory before a step: the maximum over medians of four consecutive samples.

    One unusual step, such as a checkpoint, does not change it. None if there are less than four
    samples. ``samples`` may contain the same steps twice.
    """
    unique = sorted({sample for series in samples for sample in series if sample[0] < step})
    ends = range(_IN_A_ROW, len(unique) + 1, _IN_A_ROW)
    medians = (median(num_bytes for _, num_bytes in unique[end - _IN_A_ROW : end]) for end in ends)
    return max(medians, default=None)


class MemoryLimit(NamedTuple):
    """A memory limit that processes share."""

    node: str
    """Name of the node."""
    path: str
    """Path of the control group; "" stands for the host."""
    total_bytes: int
    free_bytes: int

    @property
    def place(self) -> tuple[str, str]:
        """Identifies the limit; its free bytes change from poll to poll."""
        return self.node, self.path


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Memory of one device in the framework's allocator; None if it is unknown."""

    device: str
    limit_bytes: float | None
    reserved_bytes: float | None
    unused_samples: Samples = ()
    """Reserved but not allocated, at the end of the latest 64 steps."""
    offloaded_samples: Samples = ()
    """The same while model states are off the device, for a process that offloads."""
    allocated_samples: Samples = ()
    """Allocated for tensors, at the end of the latest 64 steps."""
    peak_bytes: float | None = None
    """Most that was allocated for tensors."""
    outside_bytes: float | None = None
    """Memory of the process on the device outside the allocator."""
    highest_before_bytes: float | None = None
    """Highest allocation at the end of earlier steps, see ``highest_before``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Memory of one living process."""

    process: ProcessId
    step: int | None
    step_seconds: float | None
    """Median of its latest steps; None before the first."""
    samples: Samples = ()
    """Anonymous memory at the end of the latest 64 steps."""
    sparse_samples: tuple[Samples, ...] = ()
    """The same for 64 of every second, fourth and eighth step."""
    limits: tuple[MemoryLimit, ...] = ()
    """Limits that apply, its own control group first and the host last. Empty if its memory has
    changed less than any leak would change it."""
    devices: tuple[DeviceUse, ...] = ()
    heap: GlibcHeap | None = None
