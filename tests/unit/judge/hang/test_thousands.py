"""A job of thousands of ranks that stands is judged as one of a few, each thing asked once."""

from __future__ import annotations

from dataclasses import replace

from dfx_agent.facts.rank import Arrival, RankFacts, Waiter
from dfx_agent.judge.hang import role as module
from dfx_agent.judge.hang.role import Role

SECOND = 10**9
NOW_NS = 1000 * SECOND


def rank(number: int, reached: int, **known) -> RankFacts:
    return RankFacts(
        label=str(number), rank=number, pid=100 + number, now_ns=NOW_NS, begin_ns=1,
        moved_ns=NOW_NS - 20 * SECOND, reached={"0": reached}, **known,
    )  # fmt: skip


def waiting(number: int) -> RankFacts:
    arrival = Arrival("all_reduce", "0", 9, NOW_NS - 20 * SECOND + number)
    return replace(rank(number, 9), arrivals=(arrival,), is_blocked=True)


def test_who_has_not_come_is_asked_once_for_all_that_wait(monkeypatch):
    asked = []
    has_arrived = RankFacts.has_arrived

    def counted(known: RankFacts, waiter: Waiter) -> bool:
        asked.append(known.label)
        return has_arrived(known, waiter)

    monkeypatch.setattr(module.RankFacts, "has_arrived", counted)
    ranks = [*map(waiting, range(300)), rank(300, 8), rank(301, 8)]
    role = Role("trainer", ranks)
    assert [r.label for r in role.absent(role.waiters())] == ["300", "301"]
    assert len(asked) == len(ranks)


def test_one_that_waits_alone_does_not_miss_itself():
    alone = replace(waiting(0), reached={})
    role = Role("trainer", [alone, rank(1, 9)])
    assert role.absent(role.waiters()) == []


def test_who_waits_for_a_peer_misses_that_one_alone():
    arrivals = {0: Arrival("send", "0", None, 1, 2), 1: Arrival("send", "0", None, 1, 3)}
    ranks = [replace(rank(n, 3), arrivals=(a,)) for n, a in arrivals.items()]
    role = Role("trainer", [*ranks, rank(2, 3), rank(3, 3)])
    assert [r.label for r in role.absent(role.waiters())] == ["2", "3"]


def test_devices_that_wait_in_uneven_groups_alone_are_waiters():
    ranks = [
        replace(rank(0, 9), reached={"0": 9, "tp": 4}),
        replace(rank(1, 8), reached={"0": 8, "tp": 4}),
    ]
    found = Role("trainer", ranks).device_waiters()
    assert [(w.rank.label, w.arrival.group, w.arrival.sequence) for w in found] == [("0", "0", 9)]
