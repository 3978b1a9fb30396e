"""What a node tells a hub: all once, then what is new, and together it is the whole again."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count

import pytest
from hang_scene import staged
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.facts.document import dumped, loaded
from dfx_agent.facts.ledger import LedgerNews
from dfx_agent.facts.measurements import RankTotals
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.scalars import ReportedScalars, ScalarRecord
from dfx_agent.facts.seat import Launch, ProcessId, Seat
from dfx_agent.facts.steps import RankStep, RoleSteps, Step
from dfx_agent.hub.clocks import NodeClock
from dfx_agent.hub.node_facts import NodeRun
from dfx_agent.hub.sending import (
    UnsentFacts,
    UnsentItems,
    _joined,
    _with_batches,
    _with_scalars,
    newer,
)
from dfx_agent.snapshot import EngineFacts

DURATIONS = st.lists(st.integers(0, 3), max_size=20)


@given(before=DURATIONS, added=DURATIONS, num_gone=st.integers(0, 20))
def test_what_was_added_at_the_end_is_found(before, added, num_gone):
    """As far as it can be told: what looks like the end of before may have been added too."""
    now = tuple([*before, *added][-max(1, 20 - num_gone) :])
    new = newer(tuple(before), now)
    assert len(new) <= max(len(added), 0) + (not before)
    assert [*before, *new][-len(now) :] == list(now)[-len([*before, *new]) :]


def test_each_fact_is_sent_once_and_all_on_request():
    reported: UnsentItems[int] = UnsentItems(4)
    reported.add([1, 2])
    assert (reported.news(is_full=False), reported.news(is_full=False)) == ((1, 2), ())
    reported.add([3, 4, 5, 6, 7])
    assert reported.news(is_full=False) == (4, 5, 6, 7)
    assert reported.news(is_full=True) == (4, 5, 6, 7)
    reported.add([8])
    assert reported.news(is_full=False) == (8,)


def taken(node: NodeRun, facts: RunFacts) -> RunFacts:
    read = loaded(dumped(facts))
    node.take(read, read.now_ns)
    return read


def test_increments_make_the_whole(dfx_dir):
    with staged(dfx_dir) as scene:
        scene.agent.collect_facts("node-a")
        ranks = scene.warm_up()
        scene.agent.poll()
        (first,) = scene.agent.facts()
        node = NodeRun("node-a", NodeClock(), first)
        assert first.is_full
        taken(node, first)
        for step in range(5, 9):
            for rank in ranks:
                rank.step(step)
                rank.ended("backward", seconds=step / 10)
                rank.took_part("all_reduce@0", step)
            scene.agent.poll()
            (facts,) = scene.agent.facts()
            assert not facts.is_full
            taken(node, facts)
        (whole,) = scene.agent.facts(is_full=True)
        again = NodeRun("node-a", NodeClock(), whole)
        taken(again, whole)
        assert node.seats == again.seats
        assert set(node.ranks) == {("trainer", str(rank)) for rank in range(4)}
        for key, rank in again.ranks.items():
            known = replace(node.ranks[key], now_ns=rank.now_ns, now_seconds=rank.now_seconds)
            for name in ("stage_durations", "collective_durations", "reached", "operations"):
                assert getattr(known, name) == getattr(rank, name), name
            assert (known.begin_ns, known.pid, known.moved_ns) == (
                rank.begin_ns, rank.pid, rank.moved_ns,
            )  # fmt: skip


def test_facts_do_not_grow_while_nothing_happens(dfx_dir):
    with staged(dfx_dir) as scene:
        scene.agent.collect_facts("node-a")
        scene.warm_up()
        scene.agent.poll()
        scene.agent.facts()
        scene.agent.poll()
        scene.agent.facts()
        scene.agent.poll()
        (facts,) = scene.agent.facts()
        assert (facts.seats, facts.scalars, facts.memory) == ((), (), ())
        assert not any(role.steps for role in facts.steps)
        assert not any(rank.stage_durations for rank in facts.ranks["trainer"])


def test_an_agent_without_a_run_says_that_it_is_there(dfx_dir):
    with staged(dfx_dir) as scene:
        scene.agent.collect_facts("node-a")
        scene.agent.poll()
        (facts,) = scene.agent.facts()
        assert (facts.run, facts.node, facts.seats) == ("", "node-a", ())
        assert facts.now_ns <= time.monotonic_ns()


def test_durations_are_sent_again_if_they_change_a_limit():
    """A limit is some times the median and the longest: what is like those is not news."""
    unsent, known = UnsentFacts(), [1_000_000_000] * 20
    assert told_by(unsent, known) == {"backward": (1_000_000_000,) * 20}
    known.append(1_020_000_000)
    assert told_by(unsent, known) == {}
    known.append(3_000_000_000)
    assert told_by(unsent, known) == {"backward": (1_020_000_000, 3_000_000_000)}


def told_by(unsent: UnsentFacts, known: list[int]) -> dict[str, tuple[int, ...]]:
    rank = RankFacts(label="0", begin_ns=7, stage_durations={"backward": tuple(known)})
    (reported,) = unsent.ranks("trainer", [rank], is_full=False)
    return dict(reported.stage_durations)


def test_a_step_that_closed_and_who_is_there_is_news():
    unsent, seat = UnsentFacts(), Seat(role="trainer", label="0")
    assert unsent.has_news([seat])
    unsent.seats([seat], is_full=False)
    assert not unsent.has_news([seat])
    assert unsent.has_news([replace(seat, state="dead")])
    ranks = {"0": RankStep(1.0, 0.0, {}, None)}
    steps = RoleSteps("trainer", (Step(3, 0.0, 0, ranks),), None, 1, 1)
    unsent.add(RunFacts(run="r", node="", now_seconds=0.0, steps=(steps,)))
    assert unsent.has_news([seat])
    unsent.role(steps, is_full=False)
    assert not unsent.has_news([seat])


def test_who_stands_is_news(dfx_dir):
    with staged(dfx_dir) as scene:
        scene.agent.collect_facts("node-a")
        (rank, *_) = scene.warm_up()
        scene.agent.poll()
        scene.agent.facts()
        assert not scene.agent.has_news()
        rank.waits("all_reduce@0", 5)
        scene.agent.poll()
        (fold,) = scene.agent._runs.values()
        tracks, now_ns = fold.tracks, fold.tracks.now_ns
        assert not tracks.has_stalled_process(now_ns, 6 * 10**9)
        assert tracks.has_stalled_process(now_ns + 7 * 10**9, 6 * 10**9)


def test_readings_of_one_process_are_merged():
    process = ProcessId("trainer", "0", 7)
    loss, reward = (ScalarRecord(key, 1.0, 3, 5) for key in ("loss", "reward"))
    reported = [ReportedScalars(process, "verl", (item,), 11) for item in (loss, reward)]
    other = ReportedScalars(process, "verl", (loss,), 12)  # another clock
    assert list(_joined([*reported, other], _with_scalars)) == [
        ReportedScalars(process, "verl", (loss, reward), 11), other,
    ]  # fmt: skip
    news = [LedgerNews(process, lost, (3,)) for lost in (0, 0, 1)]
    assert list(_joined(news, _with_batches)) == [news[0], news[2]]


def test_a_waiting_launcher_is_reported_until_its_run_has_ranks(dfx_dir):
    with staged(dfx_dir) as scene:
        launch = Launch(run="r", num_nodes=2, meets_at="a:1", begin_ns=5)
        scene.agent.collect_facts("node-a", launch)
        (before,) = scene.agent.facts()
        assert (before.run, loaded(dumped(before)).launch) == ("", launch)
        scene.warm_up()
        scene.agent.poll()
        assert [facts.launch for facts in scene.agent.facts()] == [None]


@pytest.mark.parametrize(("role", "seconds"), [("trainer", 60), ("rollout", 5)])
def test_totals_are_sent_every_minute_and_when_the_process_has_ended(role, seconds):
    process = ProcessId(role, "0", 1)
    unsent, reads = UnsentFacts(), count(1)

    def sent(at_seconds: int, *, is_full: bool = False) -> list[int]:
        totals = unsent.totals([process], read, at_seconds * 10**9, is_full=is_full)
        return [item.num_records for item in totals]

    def read(_process: ProcessId) -> RankTotals:
        return RankTotals(process=process, num_records=next(reads))

    living = Seat(role=role, label="0", created_ns=1)
    unsent.seats([living], is_full=True)
    at_start = [100, 105, 110, 120, 140, 180] if role == "trainer" else [100, 105]
    assert [at for at in range(100, at_start[-1] + 5) if sent(at)] == at_start
    reads, due = count(20), at_start[-1] + seconds
    assert [sent(at) for at in (due - 1, due, due + 1)] == [[], [20], []]
    assert sent(due + 2, is_full=True) == [21]
    unsent.seats([replace(living, state="exited")], is_full=False)
    assert [sent(at) for at in (due + 3, due + 4, due + 100)] == [[22], [], []]


def test_totals_are_stored_until_new_ones_arrive_or_the_process_is_removed():
    seat = Seat(role="trainer", label="0", created_ns=1)
    first = RunFacts(
        run="r", node="n", now_seconds=1.0, agent="a", number=1, seats=(seat,),
        totals=(RankTotals(process=seat.id, num_records=7),),
    )  # fmt: skip
    node = NodeRun("n", NodeClock(), first)
    taken(node, first)
    taken(node, replace(first, number=2, is_full=False, seats=(), totals=()))
    assert node.totals_of(seat.id) == RankTotals(process=seat.id, num_records=7)
    taken(node, replace(first, number=3, is_full=False, seats=(), totals=(), left=(seat.id,)))
    assert node.totals_of(seat.id) is None


def test_engines_are_sent_when_they_have_changed_and_every_5_s_at_most():
    first = EngineFacts("0", "", "http://h:8000", "up", 100.0, model="m" * 2000)
    second = replace(first, state="gone", model="m")
    unsent = UnsentFacts()

    def sent(at_seconds: int, *engines: EngineFacts, is_full: bool = False) -> object:
        return unsent.engines(engines, at_seconds * 10**9, is_full=is_full)

    assert sent(100, first) == (replace(first, model="m" * 1024),)
    assert (sent(104, second), sent(105, second), sent(111, second)) == (None, (second,), None)
    assert sent(112, second, is_full=True) == (second,)
    assert sent(118) == ()
