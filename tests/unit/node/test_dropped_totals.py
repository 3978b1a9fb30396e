"""Processes that were let go are counted with their records, those that were lost too."""

from __future__ import annotations

from types import SimpleNamespace

from dfx_agent.node.ended import DroppedProcesses, surplus
from dfx_agent.node.time.totals import Totals
from dfx_agent.wire import Identity


def process(label: str, num_records: int, num_lost: int, role: str = "worker", **known):
    totals = Totals(num_records=num_records, num_lost=num_lost)
    preamble = SimpleNamespace(created_epoch_ns=5 * 10**9)
    taken = []
    return SimpleNamespace(
        registered_as=SimpleNamespace(role=role), label=label, attempt=2, totals=lambda: totals,
        follower=SimpleNamespace(preamble=preamble, identity=Identity(framework="verl")),
        continue_from=lambda attempt, totals: taken.append((attempt, totals)), taken=taken, **known,
    )  # fmt: skip


def rows(dropped: DroppedProcesses) -> dict[str, tuple[int, int, int]]:
    return {
        row.role: (row.num_ranks, row.num_records, row.num_lost_records) for row in dropped.rows()
    }


def test_records_and_lost_ones_by_role_and_a_successor_takes_its_own():
    dropped = DroppedProcesses()
    for item in (process("0", 10, 3), process("1", 20, 4), process("0", 5, 1, role="actor")):
        dropped.add(item)
    assert rows(dropped) == {"worker": (2, 30, 7), "actor": (1, 5, 1)}
    assert (dropped.attempt, dropped.begin_seconds, dropped.framework) == (2, 5.0, "verl")
    successor = process("1", 0, 0)
    dropped.restore(successor)
    ((attempt, totals),) = successor.taken
    assert (attempt, totals.num_records, totals.num_lost) == (2, 20, 4)
    assert rows(dropped) == {"worker": (2, 10, 3), "actor": (1, 5, 1)}
    dropped.restore(process("1", 0, 0))
    assert rows(dropped)["worker"] == (2, 10, 3), "only once"


def test_the_most_recently_active_ones_are_stored(monkeypatch):
    """A process that never told anything counts from its begin."""
    monkeypatch.setattr("dfx_agent.node.ended.KEEP_PROCESSES", 2)
    times = [(40, 1), (None, 30), (20, 35), (None, 10)]
    ended = []
    for number, (last_event_ns, begin_ns) in enumerate(times):
        one = process(f"p{number}", 0, 0, last_event_ns=last_event_ns)
        one.follower.begin_ns, one.is_living, one.state = begin_ns, False, "exited"
        ended.append(one)
    assert [one.label for one in surplus(ended)] == ["p3", "p2"]
