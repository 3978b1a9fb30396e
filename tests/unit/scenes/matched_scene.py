"""Ranks with collectives, and their matching."""

from __future__ import annotations

from dataclasses import dataclass, field

from dfx_agent.node.collectives.matching import Collectives
from dfx_agent.node.segments.records import Collective, DeviceTime, GroupCounts
from dfx_agent.node.time.totals import CollectiveCounts
from dfx_agent.wire import Identity

SECOND = 10**9


@dataclass
class Follower:
    """When the segment of a process was created, and what was lost of it."""

    begin_ns: int = 0
    num_lost: int = 0

    def epoch_seconds(self, monotonic_ns: int) -> float:
        return 1000 + monotonic_ns / 1e9


@dataclass(eq=False)
class Rank:
    """What the matching asks of a process; ``call`` records one collective."""

    label: str
    follower: Follower = field(default_factory=Follower)
    registered_as: Identity = field(default_factory=lambda: Identity(run="r", role="trainer"))
    is_living: bool = True
    last_event_ns: int = 0
    step: int | None = None
    collectives: list[Collective] = field(default_factory=list)
    device_times: list[DeviceTime] = field(default_factory=list)
    num_counted: tuple[int, int] = (0, 0)
    earlier_collectives: tuple[CollectiveCounts, ...] = ()
    groups: dict[str, GroupCounts] = field(default_factory=dict)
    inflight: list = field(default_factory=list)
    stages: dict[int, str] = field(default_factory=dict)

    def stage_of(self, parent: int) -> str:
        return self.stages.get(parent, "")

    def call(
        self,
        begin: int,
        end: int,
        sequence: int | None,
        operation: str = "all_reduce",
        group: str = "0",
        kind: str = "blocking",
        parent: int = 0,
    ) -> None:
        """``kind``: blocking, issued, wait, or failed (blocking)."""
        blocks, is_wait = kind in ("blocking", "failed"), kind == "wait"
        self.collectives.append(
            Collective(
                operation, group, sequence, begin, end, 8.0, 1, parent, blocks, is_wait,
                kind == "failed",
            )
        )  # fmt: skip
        self.last_event_ns = max(self.last_event_ns, end)


class Run:
    """Ranks of one run and their matching; ``read`` is one reading of all of them."""

    def __init__(self, num_ranks: int) -> None:
        self.ranks = [Rank(str(label)) for label in range(num_ranks)]
        self.collectives = Collectives()

    def read(self, times: int = 1) -> None:
        for _ in range(times):
            for rank in self.ranks:
                self.collectives.add(rank)
                rank.collectives = []
            self.collectives.settle()

    def known(self) -> Run:
        """After two readings it is known who belongs to group 0."""
        for rank in self.ranks:
            rank.call(0, 0, 0, kind="blocking")
        self.read(times=3)
        return self

    def all_call(self, arrivals: list[int], end: int, sequence: int, **more) -> None:
        for rank, begin in zip(self.ranks, arrivals, strict=True):
            rank.call(begin, end, sequence, **more)

    def end(self) -> None:
        for rank in self.ranks:
            rank.is_living = False
        self.read()

    def seconds(self, rank: int) -> tuple[float, float, float]:
        """(peers, transfer, unmatched) of one rank in nanoseconds, over all groups and stages."""
        rows = self.collectives.rows(self.ranks[rank])
        return (
            round(sum(row.peers_seconds for row in rows) * 1e9),
            round(sum(row.transfer_seconds for row in rows) * 1e9),
            round(sum(row.unmatched_seconds for row in rows) * 1e9),
        )
