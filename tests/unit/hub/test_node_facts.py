"""Facts of a node on the clocks of this host: put together anew only where they are others."""

from __future__ import annotations

from dataclasses import replace

from dfx_agent.facts.flight import FlightEntry, FlightRecord, GroupKey, RecordedGroup
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.hub.clocks import NodeClock, Shift
from dfx_agent.hub.node_facts import NodeRun

SECOND = 10**9
PLACE = ("trainer", "3")
ENTRY = FlightEntry(
    7, "all_reduce", ((8,),), 1, 8, ("float32",), 5 * SECOND, is_finished=False, is_p2p=False
)
GROUPS = {GroupKey("gloo", "0", 1): RecordedGroup("", None, (ENTRY,))}
FLIGHT = FlightRecord(9 * SECOND, 3, GROUPS)
RANK = RankFacts(label="3", rank=3, pid=1, begin_ns=1, moved_ns=1, flight=FLIGHT)


def told(rank: RankFacts, number: int) -> RunFacts:
    return RunFacts(
        run="r", node="a", now_seconds=50.0, now_ns=50 * SECOND, number=number,
        is_full=number == 1, ranks={"trainer": (rank,)},
    )  # fmt: skip


def test_a_flight_record_is_put_on_our_clocks_once():
    node = NodeRun("a", NodeClock(), told(RANK, 1))
    node.take(told(RANK, 1), 0)
    shift = Shift(2 * SECOND, 3.0)
    first = node.rank_on_local_clocks(PLACE, shift).flight
    assert first is not None
    assert first.time_ns == 11 * SECOND
    (group,) = first.groups.values()
    assert group.entries[0].created_ns == 8 * SECOND
    node.take(told(replace(RANK, begin_ns=0, flight=None), 2), 0)
    assert node.rank_on_local_clocks(PLACE, shift).flight is first, (
        "it still stands: told once, kept"
    )
    later = node.rank_on_local_clocks(PLACE, Shift(2 * SECOND, 4.0)).flight
    assert later is not None
    assert next(iter(later.groups.values())).entries[0].created_ns == 9 * SECOND


def test_a_newer_record_takes_the_place_of_the_one_before():
    node = NodeRun("a", NodeClock(), told(RANK, 1))
    node.take(told(RANK, 1), 0)
    shift = Shift(0, 0.0)
    assert node.rank_on_local_clocks(PLACE, shift).flight == FLIGHT
    newer = replace(FLIGHT, time_ns=20 * SECOND)
    node.take(told(replace(RANK, flight=newer), 2), 0)
    assert node.rank_on_local_clocks(PLACE, shift).flight == newer
    node.take(told(replace(RANK, flight=None), 3), 0)
    assert node.rank_on_local_clocks(PLACE, shift).flight is None


def test_jitter_between_two_clocks_is_no_other_shift():
    node = NodeRun("a", NodeClock(), told(RANK, 1))
    node.take(told(RANK, 1), 0)
    shifts = {node.shift(1000.0 + n * 1e-5, 60 * SECOND) for n in range(10)}
    assert len(shifts) == 1
