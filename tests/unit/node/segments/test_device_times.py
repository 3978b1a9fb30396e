"""Device time of collectives over real segments: matched by number, told apart by duration."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.node.collectives import matching as collectives
from dfx_agent.node.collectives.waits import DeviceSlot
from dfx_agent.node.process import Process
from dfx_agent.node.segments.reader import Follower
from dfx_agent.snapshot import CollectiveTime, RankRow
from dfx_agent.wire import Identity, SegmentWriter
from dfx_agent.wire.records import (
    BLOCKING,
    COLLECTIVE,
    DEVICE_TIME,
    NO_STEP,
    SCALAR,
    STAGE,
)

MS = 10**6


class Guest:
    """What one rank writes; times in milliseconds."""

    def __init__(self, folder: Path, rank: int) -> None:
        identity = Identity(run="r", role="trainer", rank=rank)
        self.segment = SegmentWriter(str(folder), identity, num_records=4096)
        self.names: dict[str, int] = {}
        self.stage = 0

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = self.segment.add_name(text)
        return self.names[text]

    def begin_stage(self, name: str) -> None:
        self.stage += 1
        now = time.monotonic_ns()
        self.segment.emit(now, now + 1, 0.0, 1, self.stage, 0, 1, STAGE, self.name(name))

    def tell(
        self, sequence: int, duration: float, stood: float | None = None, name: str = "all_reduce@0"
    ) -> None:
        seconds = (duration if stood is None else stood) / 1e3
        begin = time.monotonic_ns() - int(duration * MS)
        row = begin, begin + int(duration * MS), seconds, sequence, 0, self.stage, 1
        self.segment.emit(*row, DEVICE_TIME, self.name(name))

    def block(self, sequence: int, duration: float) -> None:
        """The same collective as the host sees it."""
        now = time.monotonic_ns()
        row = now - int(duration * MS), now, 8.0, sequence, 900 + sequence, self.stage, 1
        self.segment.emit(*row, COLLECTIVE | BLOCKING, self.name("all_reduce@0"))


class Node:
    """Ranks of one run under one agent."""

    def __init__(self, folder: Path, num_ranks: int = 2) -> None:
        self.guests = [Guest(folder, rank) for rank in range(num_ranks)]
        self.agent = Agent(Config(directory=str(folder)))

    def rows(self) -> list[RankRow]:
        """As they are after the readings in which it becomes known who belongs to a group."""
        for _ in range(3):
            self.agent.poll()
        (run,) = self.agent.snapshot().runs
        return sorted(run.ranks, key=lambda row: row.rank)

    def of_device(self) -> list[list[CollectiveTime]]:
        return [[r for r in row.collectives if r.method == "device"] for row in self.rows()]


@pytest.fixture
def node(dfx_dir: Path) -> Iterator[Node]:
    node = Node(dfx_dir)
    yield node
    node.agent._folder.close()
    for guest in node.guests:
        guest.segment.finish()


def milliseconds(row: CollectiveTime) -> tuple[float, float, float]:
    times = row.peers_seconds, row.transfer_seconds, row.unmatched_seconds
    return tuple(round(item * 1e3, 6) for item in times)


def test_the_rank_that_is_in_it_shortest_came_last(node):
    for guest in node.guests:
        guest.begin_stage("backward")
    for sequence in (5, 9):
        node.guests[0].tell(sequence, 50)
        node.guests[1].tell(sequence, 20)
    (first,), (second,) = node.of_device()
    assert (first.group, first.stage, first.num_collectives) == ("0", "backward", 2)
    assert first.num_bytes is None
    assert milliseconds(first) == (60, 40, 0)
    assert milliseconds(second) == (0, 40, 0)


def test_a_stream_that_came_late_to_its_wait_stood_for_the_end_alone(node):
    """Rank 0 arrived 80 ms before rank 1 and went to wait 50 ms before the end."""
    node.guests[0].tell(5, 100, stood=50)
    node.guests[1].tell(5, 20, stood=5)
    (first,), (second,) = node.of_device()
    assert milliseconds(first) == (30, 20, 0)
    assert milliseconds(second) == (0, 5, 0)


def test_the_hosts_time_has_rows_of_its_own_and_none_is_added_to_the_other(node):
    for guest, blocked, stood in zip(node.guests, (30, 10), (50, 20), strict=True):
        guest.block(5, blocked)
        guest.tell(5, stood)
    for row, device in zip(node.rows(), ((30, 20, 0), (0, 20, 0)), strict=True):
        entry = {item.method: item for item in row.collectives}
        assert set(entry) == {"arrival", "device"}
        assert entry["arrival"].num_collectives == entry["device"].num_collectives == 1
        assert milliseconds(entry["device"]) == device
        waited = sum(row.totals.wait_seconds["collective"].values())
        assert waited <= 0.03, "the device's time is no wait of the host"


def test_a_set_that_lacks_a_rank_is_unmatched_in_the_end(node, monkeypatch):
    monkeypatch.setattr(collectives, "_SWEEP_EVERY_NS", 0)
    for guest in node.guests:
        guest.tell(5, 10)
    assert [milliseconds(row) for (row,) in node.of_device()] == [(0, 10, 0)] * 2
    node.guests[0].tell(21, 30)
    assert milliseconds(node.of_device()[0][0]) == (0, 10, 0), "rank 1 may be a step behind"
    monkeypatch.setattr(DeviceSlot, "patience_ns", 0)
    for _ in range(2):
        node.guests[1].tell(40, 1)
        node.guests[0].tell(40, 1)
        node.agent.poll()
    (first,), (second,) = node.of_device()
    assert milliseconds(first)[2] == 30
    assert milliseconds(second)[2] == 0


def test_one_rank_alone_is_unmatched_when_it_ends(node):
    node.guests[0].tell(5, 30)
    node.guests[1].begin_stage("rollout")
    ((row,), rest) = node.of_device()
    assert milliseconds(row) == (0, 0, 0)
    assert rest == []
    for guest in node.guests:
        guest.segment.finish()
    ((row,), _) = node.of_device()
    assert milliseconds(row) == (0, 0, 30)


@pytest.mark.parametrize(
    "names", [("broadcast@0", "broadcast@0"), ("all_reduce@0", "all_gather@0")]
)
def test_entries_of_equal_duration_are_unmatched(node, names):
    """The root of a broadcast leaves before the last has come; other operations do not belong."""
    for guest, name, duration in zip(node.guests, names, (50, 20), strict=True):
        guest.tell(5, duration, name=name)
    (first,), (second,) = node.of_device()
    assert (milliseconds(first), milliseconds(second)) == ((0, 0, 50), (0, 0, 20))


def test_groups_are_apart_and_a_number_that_comes_again_is_of_a_new_group(node):
    for guest, duration in zip(node.guests, (50, 20), strict=True):
        guest.tell(5, duration)
        guest.tell(5, duration + 1, name="all_reduce@tp")
    assert [[row.group for row in rows] for rows in node.of_device()] == [["0", "tp"]] * 2
    node.guests[0].tell(7, 30)
    node.guests[0].tell(7, 40)
    node.guests[1].tell(7, 10)
    (first, _), (second, _) = node.of_device()
    assert milliseconds(first) == (30 + 30, 20 + 10, 30)
    assert milliseconds(second) == (0, 20 + 10, 0)


@pytest.mark.parametrize(
    ("seconds", "sequence"),
    [(math.nan, 5), (math.inf, 5), (-1.0, 5), (0.9, 5), (0.01, NO_STEP)],
)
def test_a_record_that_makes_no_sense_is_counted_and_passed_over(node, seconds, sequence):
    for guest in node.guests:
        now = time.monotonic_ns()
        name = guest.name("all_reduce@0")
        guest.segment.emit(now - 20 * MS, now, seconds, sequence, 0, 0, 1, DEVICE_TIME, name)
    rows = node.rows()
    assert [row.collectives for row in rows] == [(), ()]
    assert [row.num_late_records for row in rows] == [1, 1]


def test_an_unknown_kind_is_counted_and_skipped(dfx_dir):
    """So does one of before DEVICE_TIME with a guest of today."""
    guest = Guest(dfx_dir, 0)
    process = Process(Follower(guest.segment.path))
    now = time.monotonic_ns()
    guest.segment.emit(now, now, 0.01, 5, 0, 0, 1, DEVICE_TIME + 1, guest.name("all_reduce@0"))
    guest.segment.emit(now, now, 2.0, 5, 0, 0, 1, SCALAR, guest.name("loss"))
    scalars, _ = process.poll()
    assert [scalar.key for scalar in scalars] == ["loss"]
    assert process.num_strange == 1
    guest.segment.finish()
