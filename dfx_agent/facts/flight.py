"""The last collectives of a process, as torch's flight recorder holds them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dfx_agent.facts.pairs import Pairs


class Entry(NamedTuple):
    """One collective as it was issued. ``created_ns`` is Unix time.

    ``sizes`` are those of the first tensors of ``num_tensors``; ``num_elements`` is of all.
    """

    sequence: int
    operation: str
    sizes: tuple[tuple[int, ...], ...]
    num_tensors: int
    num_elements: int
    dtypes: tuple[str, ...]
    created_ns: int
    is_finished: bool
    is_p2p: bool

    @property
    def tensors(self) -> str:
        """As in " [1048576] float32", " [8] [8] and 30 more bfloat16", "" for a barrier."""
        num_more = self.num_tensors - len(self.sizes)
        words = [str(list(size)) for size in self.sizes]
        words += [f"and {num_more} more"] if num_more > 0 else []
        return "".join(f" {word}" for word in (*words, *dict.fromkeys(self.dtypes)))


class GroupKey(NamedTuple):
    """One process group in all its ranks; ``members_crc`` as two groups may have one name."""

    backend: str
    name: str
    members_crc: int


@dataclass(frozen=True)
class RecordedGroup:
    """The last entries of one group in one rank, newest first; ``members`` None: not known."""

    description: str
    members: tuple[int, ...] | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class FlightRecord:
    """Of one process. ``time_ns``: when it was taken, on the host's monotonic clock.

    ``longest_gap_ns``: between two collectives, of those that the recorder still held.
    """

    time_ns: int
    rank: int
    groups: Pairs[GroupKey, RecordedGroup]
    longest_gap_ns: int = 0

    @cached_property
    def is_waiting(self) -> bool:
        """Whether something is unfinished."""
        return any(not e.is_finished for group in self.groups.values() for e in group.entries)
