"""What a hub hands on, and what it knows of who told it."""

import pytest
from otlp_bodies import body, known

from dfx_agent.facts import envelope
from dfx_agent.hub.otlp import intake as module
from dfx_agent.hub.otlp.intake import Intake
from dfx_agent.hub.otlp.requests import read_records


class Received:
    """Takes what it is given; lacks something while ``is_behind``."""

    def __init__(self):
        self.documents = []
        self.error = None
        self.is_behind = False
        self.names = {}

    def receive(self, document, node):
        if self.error is not None:
            raise self.error
        self.documents.append((node, document))
        return not self.is_behind

    def called(self, node, run):
        return self.names.get((node, run), run)


@pytest.fixture
def received():
    return Received()


@pytest.fixture
def intake(received):
    return Intake(received)


def told(intake, *records, document=b"{}"):
    return intake.take(read_records(body(*records, document=document), "", 1 << 20), "10.0.0.1")


def test_a_document_is_handed_on_with_the_name_of_its_node(intake, received):
    assert told(intake, known(), document=b"{1}") == module.IntakeResult(0, "", wants_all=False)
    assert received.documents == [("node-a", b"{1}")]
    (row,) = intake.nodes()
    assert (row.num_taken, row.num_missed, row.num_refused) == (1, 0, 0)


def test_a_node_learns_the_name_of_its_run_on_the_hub(intake, received):
    assert told(intake, known()).called == {}
    received.names["node-a", "r"] = "r (b)"
    assert told(intake, known()).called == {"r": "r (b)"}


def test_a_receiver_that_lacks_facts_gets_all(intake, received):
    received.is_behind = True
    assert told(intake, known()).wants_all
    (row,) = intake.nodes()
    assert (row.num_taken, row.num_missed, row.num_refused) == (1, 1, 0)


def test_a_document_that_cannot_be_used_is_refused_with_its_reason(intake, received):
    received.error = ValueError("facts of version 2, this agent reads 1")
    taken = told(intake, known())
    assert taken == module.IntakeResult(
        1, "facts of version 2, this agent reads 1", wants_all=False
    )
    (row,) = intake.nodes()
    assert (row.node, row.num_refused, row.message) == ("node-a", 1, taken.message)


def test_a_fault_of_ours_costs_that_document_alone(intake, received):
    received.error = RuntimeError("a\nb")
    assert told(intake, known()).message == "a b"
    received.error = None
    assert told(intake, known()).num_refused == 0


def test_a_stranger_s_log_is_refused_under_its_address(intake):
    assert told(intake, {"service": "x"}).num_refused == 1
    (row,) = intake.nodes()
    assert row.node == "10.0.0.1"


def test_an_agent_is_a_target_from_its_greeting_to_its_goodbye(intake):
    greeting = {envelope.NODE: "a", envelope.AGENT: "1", envelope.URL: "http://a:9931"}
    told(intake, greeting, document=b"")
    (target,) = intake.targets()
    assert (target.node, target.url, target.runs) == ("a", "http://a:9931", ())
    told(intake, known(node="a", agent="1"))
    assert intake.targets()[0].runs == ("r",)
    told(intake, greeting | {envelope.IS_LAST: True}, document=b"")
    assert intake.targets() == ()
    assert intake.nodes()[0].has_left


def test_many_agents_are_asked_to_send_less_often(intake):
    every_seconds = []
    for number in range(1200):
        told(intake, known(agent=str(number), node=f"n{number}"))
        every_seconds.append(intake.every_seconds)
    assert [every_seconds[number - 1] for number in (1, 32, 33, 600, 1200)] == [1, 1, 2, 2, 4]


def test_what_is_held_has_bounds(received, monkeypatch):
    monkeypatch.setattr(module, "MAX_AGENTS", 3)
    monkeypatch.setattr(module, "_MAX_NAMES", 4)
    intake = Intake(received)
    for number in range(20):
        told(intake, known(agent=str(number), node=f"n{number}"))
    assert len(received.documents) == 3
    assert len(intake.nodes()) == 5
    for number in range(100):
        told(intake, known(agent="0", node="n0", run=f"r{number}", **{envelope.URL: "http://a:1"}))
    assert len(intake.targets()[0].runs) == 64


def test_who_is_silent_for_an_hour_is_forgotten(intake, monkeypatch):
    told(intake, known(**{envelope.URL: "http://a:1"}))
    late_ns = module.time.monotonic_ns() + int(module.FORGET_SECONDS * 1e9) + 1
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: late_ns)
    told(intake, known(node="b", agent="2", **{envelope.URL: "http://b:1"}))
    assert [target.node for target in intake.targets()] == ["b"]


def test_nodes_that_sent_lately_and_have_not_left_are_present(intake, monkeypatch):
    told(intake, known(agent="1"), known(node="node-b", agent="2"))
    assert intake.present() == ("node-a", "node-b")
    told(intake, known(agent="1", **{envelope.IS_LAST: True}))
    assert intake.present() == ("node-b",)
    monkeypatch.setattr(module, "PRESENT_SECONDS", 0.0)
    assert intake.present() == ()
