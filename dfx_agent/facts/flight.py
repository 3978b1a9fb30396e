"""The last collectives of a process, from torch's flight recorder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dfx_agent.snapshot.document import Pairs


class FlightEntry(NamedTuple):
    """One collective as it was issued."""

    sequence: int
    operation: str
    sizes: tuple[tuple[int, ...], ...]
    """Sizes of the first tensors."""
    num_tensors: int
    """Number of all tensors."""
    num_elements: int
    """Elements of all tensors."""
    dtypes: tuple[str, ...]
    created_ns: int
    """Unix time."""
    is_finished: bool
    is_p2p: bool
    """Whether it is a send or a receive."""

    @property
    def tensors(self) -> str:
        """Sizes and types, such as " [1048576] float32" or " [8] [8] and 30 more bfloat16"."""
        num_more = self.num_tensors - len(self.sizes)
        words = [str(list(size)) for size in self.sizes]
        words += [f"and {num_more} more"] if num_more > 0 else []
        return "".join(f" {word}" for word in (*words, *dict.fromkeys(self.dtypes)))


class GroupKey(NamedTuple):
    """Identifies a process group in all its ranks. Two groups may have the same name."""

    backend: str
    name: str
    members_crc: int
    """Checksum of the members' ranks."""


@dataclass(frozen=True)
class RecordedGroup:
    """The last collectives of one group in one rank."""

    description: str
    members: tuple[int, ...] | None
    """Ranks in the job; None if unknown."""
    entries: tuple[FlightEntry, ...]
    """The latest first."""


@dataclass(frozen=True)
class FlightRecord:
    """The flight record of one process."""

    time_ns: int
    """When it was written, on the host's monotonic clock."""
    rank: int
    groups: Pairs[GroupKey, RecordedGroup]
    longest_gap_ns: int = 0
    """Longest time between two recorded collectives."""

    @cached_property
    def is_waiting(self) -> bool:
        """Whether a collective is unfinished."""
        entries = (entry for group in self.groups.values() for entry in group.entries)
        return any(not entry.is_finished for entry in entries)
