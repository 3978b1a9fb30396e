"""Counters of one rank, and the part of them that is stored for the next agent."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.node.time.account import Split
from dfx_agent.wire.layout import WORD
from dfx_agent.wire.records import RECORD


@dataclass
class Totals:
    """Counters that never decrease, also when the process or the agent restarts."""

    split: Split = field(default_factory=Split)
    tokens: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    num_records: int = 0
    num_lost: int = 0
    num_late: int = 0
    num_guest_drops: int = 0
    num_earlier: int = 0  # records that were overwritten before the first poll

    def merge(self, other: Totals, sign: int = 1) -> None:
        """Add ``other``, or subtract it with ``sign`` -1."""
        mine, its = self.split, other.split
        mine.active_ns += sign * its.active_ns
        mine.idle_ns += sign * its.idle_ns
        for stage, length_ns in its.stages_ns.items():
            mine.stages_ns[stage] += sign * length_ns
        for wait, length_ns in its.waits_ns.items():
            mine.waits_ns[wait] += sign * length_ns
        for counts, more in ((self.tokens, other.tokens), (self.counters, other.counters)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0.0) + sign * count
        self.num_records += sign * other.num_records
        self.num_lost += sign * other.num_lost
        self.num_late += sign * other.num_late
        self.num_guest_drops += sign * other.num_guest_drops
        self.num_earlier += sign * other.num_earlier


class CollectiveCounts(NamedTuple):
    """Counts of one rank in the collectives of one group and stage."""

    group: str
    stage: str
    counts: tuple[float, ...]  # in the order of ``Book.counts``


@dataclass(frozen=True)
class StoredTotals:
    """Totals of a process at the moment when its agent stopped reading it."""

    position: int  # number of the last record that is included
    until_ns: int  # time up to which durations are included, on the guest's monotonic clock
    totals: Totals  # its num_guest_drops is that of earlier processes of the rank
    collectives: tuple[CollectiveCounts, ...] = ()  # of the rank


def num_up_to(position: int, packed: bytearray) -> int:
    """How many of these consecutive records have a number up to ``position``."""
    numbers = memoryview(packed).cast("Q")[:: RECORD.size // WORD.size].tolist()
    return bisect_right(numbers, position)
