"""How a node takes the answers of its hub."""

import pytest

from dfx_agent.exporters.otel import link as module
from dfx_agent.exporters.otel.link import HubLink
from dfx_agent.facts.envelope import CALLED, DELIVERS, EVERY_SECONDS, HUB_ID, WANTS_ALL

HUB = {HUB_ID: "first"}


class Clock:
    """time.time and time.monotonic, moved by hand."""

    def __init__(self):
        self.now = 1000.0

    def time(self):
        return self.now

    monotonic = time

    def monotonic_ns(self):
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def said():
    return []


@pytest.fixture
def link(clock, said):
    return HubLink("http://hub:9932", lambda text, is_well: said.append((text, is_well)))


def test_everything_is_sent_first_and_then_changes(link):
    assert link.next() == "all"
    link.see_answer(200, HUB, "")
    assert [link.next() for _ in range(3)] == ["news"] * 3
    assert link.row().state == "joined"


@pytest.mark.parametrize(
    "answer", [{HUB_ID: "second"}, HUB | {WANTS_ALL: "1"}], ids=["another hub", "asked for"]
)
def test_everything_is_sent_again_if_the_hub_lacks_it(link, clock, answer):
    link.next()
    link.see_answer(200, HUB, "")
    clock.now += 60
    link.see_answer(200, answer, "")
    assert [link.next(), link.next()] == ["all", "news"]


def test_everything_is_sent_again_after_a_loss(link, clock):
    link.next()
    link.see_answer(200, HUB, "")
    clock.now += 60
    link.count_lost(3)
    assert link.next() == "all"
    assert link.row().num_lost == 3


def test_unsent_facts_stay_requested(link, clock):
    assert link.next() == "all"
    link.put_off("all")
    assert link.next() is None
    clock.now += 3
    assert link.next() == "all"
    link.put_off("news")
    assert link.next() == "news"


def test_a_hub_that_always_asks_does_not_always_get_everything(link, clock):
    reported = []
    for _ in range(30):
        reported.append(link.next())
        link.see_answer(200, HUB | {WANTS_ALL: "1"}, "")
        clock.now += 1
    assert reported.count("all") == 10
    assert reported.count(None) == 20


def test_through_a_relay_everything_is_sent_every_ten_seconds(link, clock):
    reported = []
    for _ in range(31):
        reported.append(link.next())
        link.see_answer(200, {}, "")
        clock.now += 1
    assert [second for second, what in enumerate(reported) if what == "all"] == [0, 10, 20, 30]
    assert set(reported) == {"all", "news"}


def test_each_change_is_said_once(link, clock, said):
    for _ in range(3):
        link.see_no_answer("Connection refused")
    clock.now += 30
    for _ in range(3):
        link.see_answer(200, HUB, "")
    for _ in range(3):
        link.see_answer(401, {}, "")
    assert [is_well for _, is_well in said] == [False, True, False]
    assert "does not answer (Connection refused)" in said[0][0]
    assert "again, after 30 s" in said[1][0]
    assert "wrong token (401)" in said[2][0]


def test_the_row_says_since_when_it_is_lost(link, clock):
    link.see_answer(200, HUB, "")
    clock.now = 2000.0
    link.see_answer(503, {}, "")
    clock.now = 2100.0
    link.see_no_answer("Connection refused")
    row = link.row()
    assert (row.state, row.since_seconds) == ("lost", 2000.0)
    assert row.message == "Connection refused"


def test_documents_that_it_refuses_are_no_join(link, said):
    link.see_answer(200, HUB, "facts of version 2, this agent reads 1")
    assert link.row().state == "refused"
    assert "facts of version 2" in said[0][0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2.5", 2.5), ("0", 1.0), ("-1", 1.0), ("nan", 1.0), ("inf", 30.0), ("x", 2.0), ("1e9", 30.0)],
)
def test_the_interval_that_a_hub_asks_for_has_bounds(link, text, seconds):
    link.see_answer(200, HUB | {EVERY_SECONDS: text}, "")
    assert link.every_seconds == seconds


def test_a_hub_that_delivers_is_waited_for_a_minute(link, clock):
    assert not link.is_delivered_by_hub
    link.see_answer(200, HUB | {DELIVERS: "1"}, "")
    assert link.is_delivered_by_hub
    clock.now += 500
    link.see_no_answer("Connection refused")
    clock.now += 59
    assert link.is_delivered_by_hub
    clock.now += 2
    assert not link.is_delivered_by_hub
    link.see_answer(200, HUB | {DELIVERS: "1"}, "")
    assert link.is_delivered_by_hub


def test_a_hub_without_receivers_leaves_the_alerts_to_its_nodes(link):
    link.see_answer(200, HUB, "")
    assert not link.is_delivered_by_hub


@pytest.mark.parametrize(
    ("is_taken", "is_delivered", "is_of_hub"),
    [(True, True, True), (False, True, False), (True, False, False)],
    ids=["taken", "not taken", "not told in time"],
)
def test_at_the_end_a_node_delivers_what_its_hub_has_not_taken(
    link, is_taken, is_delivered, is_of_hub
):
    link.see_answer(200, HUB | {DELIVERS: "1"}, "")
    if not is_taken:
        link.see_no_answer("Connection refused")
    assert link.is_delivered_by_hub
    link.see_end(is_delivered=is_delivered)
    assert link.is_delivered_by_hub == is_of_hub


def test_the_hub_name_of_a_run_stays_while_the_hub_is_gone(link):
    link.see_answer(200, HUB | {CALLED: "r=r+%28b%3A1%29"}, "")
    link.see_no_answer("it is gone")
    link.see_answer(200, HUB, "")
    assert (link.called("r"), link.called("s")) == ("r (b:1)", "s")
