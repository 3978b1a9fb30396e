"""Waiting for peers against transfer: every nanosecond that a host was blocked, booked once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matched_scene import SECOND, Follower, Rank, Run

from dfx_agent.node.collectives import matching as module
from dfx_agent.node.collectives.waits import waits_by_duration
from dfx_agent.node.segments.records import GroupCounts
from dfx_agent.snapshot import CollectiveTime
from dfx_agent.wire.records import COLLECTIVE

SLOW = settings(max_examples=200, deadline=None)


@pytest.fixture
def three() -> Run:
    return Run(3).known()


def test_before_the_last_arrival_a_rank_waits_for_peers_and_after_it_is_transfer(three):
    three.all_call([100, 130, 190], 200, sequence=1)
    three.read()
    assert [three.seconds(rank) for rank in range(3)] == [(90, 10, 0), (60, 10, 0), (0, 10, 0)]
    assert not any(group.slots for group in three.collectives._groups.values())


def test_asynchronous_work_blocks_only_where_it_is_waited_for(three):
    """Arrivals are when it is issued: 100, 150, 400. Rank 1 waits late and loses nothing."""
    three.ranks[0].call(100, 105, 1, kind="issued")
    three.ranks[1].call(150, 155, 1, kind="issued")
    three.ranks[2].call(400, 405, 1, kind="issued")
    three.read()
    three.ranks[0].call(300, 500, 1, kind="wait")
    three.ranks[1].call(450, 460, 1, kind="wait")
    three.ranks[2].call(410, 500, 1, kind="wait")
    three.read()
    assert [three.seconds(rank) for rank in range(3)] == [(100, 100, 0), (0, 10, 0), (0, 90, 0)]


def test_a_wait_finds_its_peers_however_long_ago_the_work_was_issued(three):
    for rank in three.ranks[:2]:
        rank.call(100, 105, 1, kind="issued")
    three.read()
    three.ranks[0].call(200, 60 * SECOND, 1, kind="wait")
    three.ranks[2].call(59 * SECOND, 59 * SECOND + 5, 1, kind="issued")
    three.read(times=2)
    assert three.seconds(0) == (59 * SECOND - 200, SECOND, 0)


def test_the_root_of_a_broadcast_leaves_before_the_last_receiver_comes(three):
    three.ranks[0].call(100, 110, 1, "broadcast")
    three.ranks[1].call(90, 120, 1, "broadcast")
    three.ranks[2].call(500, 510, 1, "broadcast")
    three.read()
    assert [three.seconds(rank) for rank in range(3)] == [(10, 0, 0), (30, 0, 0), (0, 10, 0)]


def test_clocks_that_cannot_be_compared_are_seen_and_durations_used_instead(three):
    """Nobody leaves an all-reduce before the last has come: rank 2 has another clock."""
    three.ranks[0].call(100, 200, 1)
    three.ranks[1].call(170, 200, 1)
    three.ranks[2].call(9100, 9140, 1)
    three.read()
    for rank, times in enumerate([(70, 30, 0), (0, 30, 0), (10, 30, 0)]):
        assert three.seconds(rank) == times
        by_method = {row.method: row for row in three.collectives.rows(three.ranks[rank])}
        assert by_method["duration"].transfer_seconds == 30e-9
        assert by_method["arrival"].num_collectives == 2
        assert by_method["duration"].num_collectives == 0


def test_waits_by_duration_take_the_shortest_for_the_last_to_come():
    assert waits_by_duration([40, 25, 90]) == [15, 0, 65]
    assert waits_by_duration([]) == []


def test_other_operations_under_one_number_are_unmatched_and_counted(three):
    three.ranks[0].call(100, 200, 1, "all_reduce")
    three.ranks[1].call(110, 200, 1, "barrier")
    three.ranks[2].call(120, 200, 1, "all_reduce")
    three.read()
    assert [three.seconds(rank) for rank in range(3)] == [(0, 0, 100), (0, 0, 90), (0, 0, 80)]
    assert three.collectives.num_misaligned == 1


def test_what_has_no_number_is_unmatched_at_once(three):
    three.ranks[0].call(100, 250, None, "send")
    three.read()
    assert three.seconds(0) == (0, 0, 150)


def test_a_failed_collective_is_unmatched_for_the_rank_in_which_it_failed(three):
    three.ranks[0].call(100, 200, 1, kind="failed")
    three.ranks[1].call(150, 200, 1)
    three.ranks[2].call(160, 200, 1)
    three.read()
    assert [three.seconds(rank) for rank in range(3)] == [(0, 0, 100), (10, 40, 0), (0, 40, 0)]


def test_a_rank_that_never_reports_is_waited_for_10_s_of_event_time(three):
    for rank in three.ranks[:2]:
        rank.call(100, 200, 1)
    three.ranks[2].call(9 * SECOND, 9 * SECOND, None)
    three.read(times=3)
    assert three.seconds(0) == (0, 0, 0)
    three.ranks[2].call(11 * SECOND, 11 * SECOND, None)
    three.read(times=2)
    assert three.seconds(0) == three.seconds(1) == (0, 0, 100)


def test_one_rank_alone_waits_for_somebody_on_another_node():
    run = Run(1)
    run.ranks[0].call(100, 250, 1)
    run.read(times=4)
    assert run.seconds(0) == (0, 0, 0)
    run.end()
    assert run.seconds(0) == (0, 0, 150)


def test_nobody_is_taken_for_the_last_before_all_ranks_were_read_once():
    """Rank 2 is read before it gets there, the others after."""
    run = Run(3)
    run.ranks[0].call(100, 200, 1)
    run.ranks[1].call(110, 200, 1)
    run.read()
    assert run.seconds(0) == (0, 0, 0)
    run.ranks[2].call(180, 200, 1)
    run.read()
    assert [run.seconds(rank) for rank in range(3)] == [(80, 20, 0), (70, 20, 0), (0, 20, 0)]


def test_a_group_on_some_of_the_ranks_waits_for_those_alone(three):
    for sequence in (1, 2, 3):
        three.ranks[0].call(sequence * 1000, sequence * 1000 + 100, sequence, group="tp")
        three.ranks[2].call(sequence * 1000 + 70, sequence * 1000 + 100, sequence, group="tp")
        three.read()
    assert three.seconds(0) == (210, 90, 0)


def test_the_last_collectives_of_ranks_that_end_one_after_the_other_are_matched(three):
    for sequence in (1, 2, 3):
        three.all_call([sequence * 1000] * 3, sequence * 1000 + 50, sequence)
    for rank in three.ranks:
        rank.is_living = False
        three.collectives.add(rank)
        rank.collectives = []
        three.collectives.settle()
    assert [three.seconds(rank) for rank in range(3)] == [(0, 150, 0)] * 3


def test_a_rank_that_died_is_not_waited_for(three):
    three.ranks[2].is_living = False
    three.ranks[0].call(100, 200, 1)
    three.ranks[1].call(140, 200, 1)
    three.read(times=2)
    assert [three.seconds(rank) for rank in range(2)] == [(40, 60, 0), (0, 60, 0)]


def test_values_of_two_attempts_stay_apart_and_counters_continue(three):
    three.all_call([100, 100, 150], 200, sequence=1)
    three.read()
    three.ranks[0].call(1000, 1400, 2)
    three.read()
    three.ranks = [Rank(str(label), Follower(4000)) for label in range(3)]
    three.ranks[1].call(5000, 5100, 2)
    three.read()
    assert three.seconds(0) == (50, 50, 400)
    three.ranks[0].call(5090, 5100, 2)
    three.ranks[2].call(5000, 5100, 2)
    three.read(times=2)
    assert three.seconds(0) == (50, 60, 400)
    assert three.seconds(1) == (50 + 90, 50 + 10, 0)


def test_a_new_group_of_the_same_name_counts_from_the_beginning(three):
    three.ranks[0].call(100, 105, 1, kind="issued")
    three.read()
    later = 20 * SECOND
    three.all_call([later, later + 10, later + 20], later + 50, sequence=1)
    three.read()
    assert three.seconds(0) == (20, 30, 0)


def test_a_rank_that_moved_to_another_label_is_not_waited_for_under_the_old_one(three):
    three.ranks[2].label = "p77"
    three.ranks[2].call(120, 200, 1)
    for rank in three.ranks[:2]:
        rank.call(100, 200, 1)
    three.read(times=2)
    assert three.seconds(0) == (20, 80, 0)


def test_time_is_booked_by_the_stage_around_and_bytes_with_it(three):
    for rank in three.ranks:
        rank.stages = {7: "backward", 9: "weight_sync"}
    three.all_call([100, 100, 150], 200, sequence=1, parent=7)
    three.all_call([300, 310, 310], 400, sequence=2, parent=9)
    three.read()
    rows = {row.stage: row for row in three.collectives.rows(three.ranks[0]) if row.stage}
    assert rows["backward"] == CollectiveTime("0", "backward", "arrival", 1, 8.0, 50e-9, 50e-9, 0.0)
    assert rows["weight_sync"].peers_seconds == 10e-9


def test_names_beyond_64_are_booked_under_other_and_matched_all_the_same():
    run = Run(2)
    for index in range(1000):
        run.all_call([100, 160], 200, sequence=1, group=f"g{index}")
    run.all_call([100, 160], 200, sequence=1, group="0")  # of all ranks: never under other
    run.read(times=3)
    rows = run.collectives.rows(run.ranks[0])
    assert len(rows) == 66
    assert next(row for row in rows if row.group == "0").num_collectives == 1
    other = next(row for row in rows if row.group == "other")
    assert other.num_collectives == 1000 - 64
    assert run.seconds(0) == (60 * 1001, 40 * 1001, 0)


def test_what_is_pending_is_bounded_and_no_time_is_lost(three, monkeypatch):
    monkeypatch.setattr(module, "_MAX_PENDING", 512)
    for sequence in range(1, 3001):
        three.ranks[0].call(sequence * 10, sequence * 10 + 5, sequence)
    three.read()
    num_pending = sum(len(group.slots) for group in three.collectives._groups.values())
    assert num_pending <= 512
    assert three.seconds(0)[2] >= 5 * (3000 - 512)
    three.end()
    assert three.seconds(0) == (0, 0, 5 * 3000)


def test_transfers_are_reported_by_step_and_many_are_merged(three, monkeypatch):
    monkeypatch.setattr(module, "_MAX_TRANSFERS", 64)
    for sequence in range(1, 101):
        three.all_call([sequence * 10] * 3, sequence * 10 + 4, sequence)
        three.read()
    rank = three.ranks[0]
    assert len(three.collectives._ranks["trainer", "0"].transfers) <= 64
    first = three.collectives.pop_transfer_ns(rank, 0, 510)
    assert first == pytest.approx(200, abs=8)
    assert first + three.collectives.pop_transfer_ns(rank, 510, 2000) == 400
    assert three.collectives.pop_transfer_ns(rank, 0, 5000) == 0


class TestCoverage:
    """Collectives recorded against those that the group has counted itself."""

    @staticmethod
    def ratio(run: Run, group: str = "0") -> float | None:
        rows = {row.group: row for row in run.collectives.group_rows(run.ranks[0])}
        return rows[group].coverage_ratio

    @staticmethod
    def report(run: Run, second: int, enqueued: int) -> None:
        rank = run.ranks[0]
        rank.last_event_ns = second * SECOND
        known = rank.groups.get("0")
        if known is None or enqueued < known.num_enqueued:
            rank.groups["0"] = GroupCounts(enqueued, enqueued, None)
        else:
            known.num_enqueued = enqueued
        run.read()

    def test_nothing_is_claimed_before_the_group_moves(self):
        run = Run(1)
        self.report(run, 1, 5)
        self.report(run, 2, 5)
        assert self.ratio(run) is None
        assert run.collectives.coverage_ratio(run.ranks[0]) is None

    def test_all_recorded_is_1_while_reports_lag_behind(self):
        run = Run(1)
        self.report(run, 1, 5)
        for sequence in range(6, 40):
            run.ranks[0].call(sequence, sequence, sequence)
            run.read()
            assert self.ratio(run) == 1
        self.report(run, 2, 35)
        assert self.ratio(run) == 1

    def test_what_the_guest_cannot_see_shows_as_a_gap(self):
        run = Run(1)
        self.report(run, 1, 5)
        for sequence in range(6, 26, 2):
            run.ranks[0].call(sequence, sequence, sequence)
        run.read()
        self.report(run, 2, 25)
        self.report(run, 4, 25)
        assert self.ratio(run) == 0.5
        assert run.collectives.coverage_ratio(run.ranks[0]) == 0.5

    def test_a_group_that_moves_without_a_record_is_0(self):
        run = Run(1)
        self.report(run, 1, 5)
        self.report(run, 2, 95)
        assert self.ratio(run) is None  # its records may be on their way
        self.report(run, 4, 95)
        assert self.ratio(run) == 0

    def test_gradients_of_ddp_stand_for_all_buckets_since_the_record_before(self):
        run = Run(1)
        self.report(run, 1, 0)
        for sequence in (4, 7, 10):
            run.ranks[0].call(sequence, sequence, sequence, "ddp_gradients")
        run.read()
        assert self.ratio(run) == 1
        run.ranks[0].call(11, 11, 15)
        run.read()
        assert self.ratio(run) == 11 / 15

    def test_what_is_in_flight_is_no_gap(self):
        run = Run(1)
        self.report(run, 1, 5)
        run.ranks[0].call(6, 6, 6)
        self.report(run, 2, 9)
        self.report(run, 4, 9)
        assert self.ratio(run) == 0.25
        event = type("Event", (), {"kind": COLLECTIVE, "name": "ddp_gradients@0"})()
        run.ranks[0].inflight = [event]
        assert self.ratio(run) == 1
        event.name = "ddp_gradients@10"
        assert self.ratio(run) == 0.25

    def test_a_count_that_goes_back_is_a_new_group(self):
        run = Run(1)
        self.report(run, 1, 100)
        self.report(run, 3, 200)
        self.report(run, 5, 200)
        assert self.ratio(run) == 0
        run.ranks[0].call(7, 7, 201)
        self.report(run, 6, 2)
        run.ranks[0].call(8, 8, 3)
        run.read()
        assert self.ratio(run) == 1


KINDS = ["blocking", "blocking", "issued", "wait", "failed"]


@SLOW
@given(st.integers(0, 2**32))
def test_peers_transfer_and_unmatched_are_what_the_host_was_blocked(seed):
    """Whatever ranks report, in whatever readings, with losses, ends and restarts."""
    rng = random.Random(seed)
    run = Run(rng.randint(1, 4))
    blocked = dict.fromkeys((rank.label for rank in run.ranks), 0)
    before = {rank.label: (0, 0, 0) for rank in run.ranks}
    now = 0
    for _ in range(rng.randrange(60)):
        now += rng.choice([1, 50, 3 * SECOND, 12 * SECOND])
        for index, rank in enumerate(run.ranks):
            if rng.random() < 0.03:
                rank.is_living = False
            if rng.random() < 0.03:
                rank = run.ranks[index] = Rank(rank.label, Follower(now))  # noqa: PLW2901
            for _ in range(rng.choice([0, 1, 1, 4])):
                kind = rng.choice(KINDS)
                sequence = rng.choice([None, *range(6)])
                begin, length = now + rng.randrange(100), rng.choice([0, 7, 40, SECOND])
                operation = rng.choice(["all_reduce", "all_reduce", "broadcast", "ddp_gradients"])
                group = rng.choice(["0", "0", "1"])
                rank.call(begin, begin + length, sequence, operation, group, kind)
                blocked[rank.label] += length if kind != "issued" else 0
        run.read()
        for index, rank in enumerate(run.ranks):
            booked = run.seconds(index)
            assert all(new >= old for new, old in zip(booked, before[rank.label], strict=True))
            assert sum(booked) <= blocked[rank.label]
            before[rank.label] = booked
    run.end()
    for index, rank in enumerate(run.ranks):
        assert sum(run.seconds(index)) == blocked[rank.label]


@SLOW
@given(st.integers(0, 2**32))
def test_however_readings_cut_the_records_the_split_is_that_of_the_definition(seed):
    """Synchronous collectives of ranks on one clock, read in any portions."""
    rng = random.Random(seed)
    run = Run(rng.randint(2, 5))
    peers = [0] * len(run.ranks)
    todo = [[] for _ in run.ranks]
    now = 1000
    for sequence in range(1, rng.randrange(2, 30)):
        arrivals = [now + rng.randrange(50) for _ in run.ranks]
        last = max(arrivals)
        for index, begin in enumerate(arrivals):
            end = last + rng.randrange(1, 9)
            todo[index].append((begin, end, sequence))
            peers[index] += last - begin
        now = last + 10
    for rank, calls in zip(run.ranks, todo, strict=True):
        rank.groups["0"] = GroupCounts(0, 0, None)
        assert calls
    while any(todo):
        for rank, calls in zip(run.ranks, todo, strict=True):
            for _ in range(min(len(calls), rng.randrange(4))):
                rank.call(*calls.pop(0))
        run.read()
    run.read(times=2)
    assert [run.seconds(index)[0] for index in range(len(run.ranks))] == peers
    assert all(run.seconds(index)[2] == 0 for index in range(len(run.ranks)))
