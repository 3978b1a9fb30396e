"""Ledger records of several processes put together to whole crossings; what is lost is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from dfx_agent.facts.ledger import LedgerNews, Progress
from dfx_agent.facts.seat import ProcessId
from dfx_agent.node.ledger_batches import LedgerAssembler
from dfx_agent.node.segments.records import LedgerRecord
from dfx_agent.wire.records import LEDGER_FIELDS, NO_STEP

ROWS, IDS = LEDGER_FIELDS.index("num_rows"), LEDGER_FIELDS.index("multiset")


@dataclass(eq=False)
class Rank:
    """As much of a process as is asked."""

    label: str = "0"
    created_ns: int = 1
    ledger: list[LedgerRecord] = field(default_factory=list)
    latest_step: int | None = 4
    is_living: bool = True

    def __post_init__(self) -> None:
        self.follower = SimpleNamespace(num_lost=0)
        self.registered_as = SimpleNamespace(role="actor")
        self.id = ProcessId("actor", self.label, self.created_ns)

    def shows(self, crossing: int, *fields: int, num: int = 2, step: int = 4) -> Rank:
        names = {ROWS: "rollout/", IDS: "rollout/sample_id"}
        self.ledger = [
            LedgerRecord(names.get(f, "rollout/x"), f, 8.0, step, crossing, num, 5) for f in fields
        ]
        return self


def test_a_batch_is_reported_when_its_last_record_arrived():
    batches, rank = LedgerAssembler(), Rank()
    assert batches.poll(rank.shows(1, ROWS)) == LedgerNews(rank.id, 0, (4,))
    news = batches.poll(rank.shows(1, IDS))
    (crossing,) = news.completed
    assert (crossing.boundary, crossing.step, crossing.time_ns) == ("rollout", 4, 5)
    assert crossing.fields == {("num_rows", ""): 8.0, ("multiset", "sample_id"): 8.0}


def test_a_poll_without_records_reports_only_losses():
    batches, rank = LedgerAssembler(), Rank()
    assert batches.poll(rank) is None
    assert list(batches.progress([rank])) == []
    batches.poll(rank.shows(1, ROWS, IDS))
    rank.ledger = []
    assert batches.poll(rank) is None
    rank.follower.num_lost = 3
    assert batches.poll(rank) == LedgerNews(rank.id, 3)


def test_fields_of_a_newer_guest_are_left_out_and_a_batch_may_be_outside_any_step():
    batches, rank = LedgerAssembler(), Rank()
    news = batches.poll(rank.shows(1, ROWS, len(LEDGER_FIELDS), step=NO_STEP))
    (crossing,) = news.completed
    assert (crossing.step, news.steps) == (None, (None, None))
    assert crossing.fields == {("num_rows", ""): 8.0}


def test_the_oldest_of_too_many_that_are_not_whole_are_given_up():
    batches, rank = LedgerAssembler(), Rank()
    reported = [batches.poll(rank.shows(n, ROWS, step=n)).given_up for n in range(40)]
    assert [given_up for given_up in reported if given_up] == [(n,) for n in range(8)]
    assert sorted(batches.remove_process(rank)) == list(range(8, 40))


def test_how_far_those_are_that_show_batches_and_whether_they_are_still_of_the_run():
    batches, one, other = LedgerAssembler(), Rank("0"), Rank("1")
    for rank in (one, other):
        batches.poll(rank.shows(1, ROWS, IDS))
    other.is_living = False
    again = Rank("1", created_ns=2)
    assert list(batches.progress([one, again])) == [
        Progress(one.id, 4, is_living=True),
        Progress(other.id, 4, is_living=False, is_present=False),
    ]  # fmt: skip
    batches.poll(again.shows(1, ROWS, IDS))
    assert [p.process.created_ns for p in batches.progress([one, again])] == [1, 2]
    batches.remove_process(again)
    assert [p.process.label for p in batches.progress([one])] == ["0"]
