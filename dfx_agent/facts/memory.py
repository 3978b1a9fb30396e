"""Memory of a process over its steps, and the limits that it meets."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from dfx_agent.facts.seat import ProcessId
from dfx_agent.snapshot import GlibcHeap

Samples = tuple[tuple[int, float], ...]  # (step, bytes), steps rising


_IN_A_ROW = 4


def highest_before(step: int, *samples: Samples) -> float | None:
    """The most that was held before this step: of medians of four samples, which follow each other.

    One odd step, a checkpoint, does not move it. None where less is known. ``samples`` may hold the
    same steps.
    """
    known = sorted({sample for each in samples for sample in each if sample[0] < step})
    ends = range(_IN_A_ROW, len(known) + 1, _IN_A_ROW)
    held = (median(num_bytes for _, num_bytes in known[end - _IN_A_ROW : end]) for end in ends)
    return max(held, default=None)


class MemoryLimit(NamedTuple):
    """What processes use up together; bytes. ``path`` of its control group, "" of the host.

    ``node``: whose, by the name that its agent knows it by.
    """

    node: str
    path: str
    total_bytes: int
    free_bytes: int

    @property
    def place(self) -> tuple[str, str]:
        """Which limit it is; what is free changes from look to look."""
        return self.node, self.path


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What the allocator of one device holds; None where it was not told.

    ``unused_samples``: what it holds and does not use, at the end of the newest 64 steps;
    ``kept_samples``: the same while its states are off the device, of one that offloads.
    ``allocated_samples``: what tensors take at the end of the newest 64 steps; ``peak_bytes``: the
    most they were seen to take. ``beside_bytes``: what the process has there beside the allocator.
    ``highest_before_bytes``: of tensors at the end of steps before those, see highest_before.
    """

    device: str
    limit_bytes: float | None
    reserved_bytes: float | None
    unused_samples: Samples = ()
    kept_samples: Samples = ()
    allocated_samples: Samples = ()
    peak_bytes: float | None = None
    beside_bytes: float | None = None
    highest_before_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """One living process. ``step_seconds``: the median of its newest steps, None before the first.

    ``samples``: its anonymous memory at the end of the newest 64 steps; ``sparse_samples``: of 64
    of every second, fourth and eighth step. ``limits``: those it meets, its own control group
    first and the host last; empty where its memory has not changed by what a leak would at least.
    """

    process: ProcessId
    step: int | None
    step_seconds: float | None
    samples: Samples = ()
    sparse_samples: tuple[Samples, ...] = ()
    limits: tuple[MemoryLimit, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    heap: GlibcHeap | None = None
