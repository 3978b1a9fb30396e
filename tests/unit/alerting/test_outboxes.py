"""What Alertmanager and a webhook are told, as state machines: no network, no clock."""

import json
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfx_agent.alerting import alertmanager as am
from dfx_agent.alerting import webhook
from dfx_agent.alerting.alertmanager import AlertmanagerOutbox
from dfx_agent.alerting.notification import Notification
from dfx_agent.alerting.webhook import WebhookOutbox

BEGIN = 1_800_000_000.0
RESOLVED_AFTER = 0.001


def notification(name: str, starts: float = BEGIN, severity: str = "critical") -> Notification:
    return Notification({"alertname": name, "severity": severity}, {}, starts, "http://page")


class Alertmanager:
    """What a real one does with posts: the newest wins, an end in the past resolves."""

    def __init__(self) -> None:
        self.alerts: dict[str, float] = {}
        self.seen_firing: dict[str, float] = {}

    def take(self, body, now: float) -> None:
        for alert in json.loads(json.dumps(body)):
            starts, ends = (datetime.fromisoformat(alert[k]).timestamp()
                            for k in ("startsAt", "endsAt"))  # fmt: skip
            assert ends >= starts
            name = alert["labels"]["alertname"]
            self.alerts[name] = ends
            if ends > now:
                self.seen_firing.setdefault(name, now)

    def firing(self, now: float) -> set[str]:
        return {name for name, ends in self.alerts.items() if ends > now}


def deliver(outbox, manager: Alertmanager, now: float, *, is_up: bool = True) -> int:
    """Everything that is due; number of posts."""
    num_posts = 0
    while is_up and (batch := outbox.next_batch(now)):
        manager.take(batch.body, now)
        outbox.confirm(batch, now + RESOLVED_AFTER)
        num_posts += 1
        assert num_posts < 1000
    return num_posts


def firing(*names: str) -> dict[str, Notification]:
    return {name: notification(name) for name in names}


def test_an_alert_is_said_at_once_then_every_minute_and_its_end_once_it_was_seen():
    outbox, manager = AlertmanagerOutbox(), Alertmanager()
    outbox.update(firing("a"), BEGIN)
    posts = [now for now in range(0, 181, 5) if deliver(outbox, manager, BEGIN + now)]
    assert posts == [0, 65, 130]
    assert manager.firing(BEGIN + 180) == {"a"}
    outbox.update({}, BEGIN + 181)
    assert outbox.num_waiting == 1
    deliver(outbox, manager, BEGIN + 182)
    assert manager.firing(BEGIN + 182) == set()
    assert outbox.num_waiting == 0


def test_an_end_within_a_minute_waits_until_people_could_see_the_alert():
    outbox, manager = AlertmanagerOutbox(), Alertmanager()
    outbox.update(firing("a"), BEGIN)
    deliver(outbox, manager, BEGIN)
    outbox.update({}, BEGIN + 2)
    deliver(outbox, manager, BEGIN + 59)
    assert manager.firing(BEGIN + 59) == {"a"}
    deliver(outbox, manager, BEGIN + 61)
    assert manager.firing(BEGIN + 61) == set()


def test_an_alert_that_came_and_went_while_nobody_listened_is_not_lost():
    outbox, manager = AlertmanagerOutbox(), Alertmanager()
    outbox.update(firing("a"), BEGIN)
    outbox.update({}, BEGIN + 10)
    deliver(outbox, manager, BEGIN + 600)
    assert manager.seen_firing == {"a": BEGIN + 600}
    deliver(outbox, manager, BEGIN + 661)
    assert manager.firing(BEGIN + 661) == set()


def test_an_alert_that_fires_again_while_its_end_is_on_the_way_is_said_again_at_once():
    outbox, manager = AlertmanagerOutbox(), Alertmanager()
    outbox.update(firing("a"), BEGIN)
    deliver(outbox, manager, BEGIN)
    outbox.update({}, BEGIN + 61)
    batch = outbox.next_batch(BEGIN + 61)
    outbox.update(firing("a"), BEGIN + 62)
    manager.take(batch.body, BEGIN + 62)
    outbox.confirm(batch, BEGIN + 62)
    assert manager.firing(BEGIN + 62) == set()
    deliver(outbox, manager, BEGIN + 62)
    assert manager.firing(BEGIN + 62) == {"a"}


def test_what_has_ended_is_repeated_for_a_while_and_then_forgotten():
    outbox, manager = AlertmanagerOutbox(), Alertmanager()
    outbox.update(firing("a"), BEGIN)
    deliver(outbox, manager, BEGIN)
    outbox.update({}, BEGIN + 100)
    assert sum(deliver(outbox, manager, BEGIN + t) for t in range(100, 2000, 10)) > 10
    outbox.update({}, BEGIN + 2000)
    assert not outbox._entries


def test_a_clock_that_is_set_back_does_not_silence_the_agent():
    outbox, manager = AlertmanagerOutbox(), Alertmanager()
    outbox.update(firing("a"), BEGIN)
    deliver(outbox, manager, BEGIN)
    assert deliver(outbox, manager, BEGIN - 3600) == 1
    outbox.update({}, BEGIN - 3500)
    deliver(outbox, manager, BEGIN - 3400)
    assert outbox.num_waiting == 0


def test_the_queue_is_bounded_and_what_is_dropped_is_counted(monkeypatch):
    monkeypatch.setattr(am, "MAX_ENTRIES", 10)
    outbox = AlertmanagerOutbox()
    for _ in range(3):
        outbox.update(firing(*map(str, range(15))), BEGIN)
    assert (len(outbox._entries), outbox.num_dropped) == (10, 5)
    outbox.update(firing(*(f"new {i}" for i in range(4))), BEGIN + 1)
    outbox.update(firing(*(f"new {i}" for i in range(6))), BEGIN + 1)
    assert len(outbox._entries) == 10
    assert {f"new {i}" for i in range(4)} <= set(outbox._entries)


def test_posts_are_small_and_the_news_goes_first():
    outbox, manager = AlertmanagerOutbox(), Alertmanager()
    old = [f"old {i}" for i in range(100)]
    outbox.update(firing(*old), BEGIN)
    assert deliver(outbox, manager, BEGIN) == 2
    outbox.update(firing(*old, "new"), BEGIN + 61)
    batch = outbox.next_batch(BEGIN + 61)
    assert len(batch.items) == am.MAX_BATCH
    assert batch.body[0]["labels"]["alertname"] == "new"


STEPS = st.lists(
    st.tuples(
        st.sets(st.sampled_from("abc")),  # what fires
        st.booleans(),  # whether Alertmanager answers
        st.booleans(),  # whether it was restarted and forgot everything
        st.sampled_from([1.0, 30.0, 61.0, 300.0]),  # seconds to the next look
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_whatever_happens_alertmanager_ends_up_with_what_fires_and_has_seen_everything(steps):
    outbox, manager, now, ever = AlertmanagerOutbox(), Alertmanager(), BEGIN, set()
    seen = set()
    for names, is_up, is_restarted, seconds in steps:
        ever |= names
        if is_restarted:
            seen |= set(manager.seen_firing)
            manager = Alertmanager()
        outbox.update({name: notification(name, now) for name in names}, now)
        deliver(outbox, manager, now, is_up=is_up)
        now += seconds
    last = steps[-1][0] if steps else set()
    for _ in range(4):
        now += 61
        outbox.update({name: notification(name, now) for name in last}, now)
        deliver(outbox, manager, now)
    assert manager.firing(now) == last
    assert seen | set(manager.seen_firing) == ever
    assert (outbox.num_waiting, outbox.num_dropped) == (0, 0)


# ----------------------------------------------------------------------------------------- webhook


def told(outbox: WebhookOutbox) -> list[tuple[str, str]]:
    found = []
    while batch := outbox.next_batch(0.0):
        outbox.confirm(batch, 0.0)
        found.append((batch.body["status"], batch.body["alerts"][0]["labels"]["alertname"]))
    return found


def test_a_webhook_hears_of_each_begin_and_each_end_once():
    outbox = WebhookOutbox()
    for names in (("a",), ("a",), ("a", "b"), ("b",), ("b",), (), ("a",)):
        outbox.update(firing(*names), BEGIN)
    assert told(outbox) == [("firing", "a"), ("firing", "b"), ("resolved", "a"),
                            ("resolved", "b"), ("firing", "a")]  # fmt: skip
    assert told(outbox) == []


def test_a_webhook_is_not_called_for_context():
    outbox = WebhookOutbox()
    outbox.update({"a": notification("a", severity="info")}, BEGIN)
    outbox.update({}, BEGIN)
    assert told(outbox) == []


def test_when_too_much_waits_for_a_webhook_the_oldest_goes_and_is_counted(monkeypatch):
    monkeypatch.setattr(webhook, "MAX_WAITING", 3)
    outbox = WebhookOutbox()
    names = list("abcde")
    outbox.update(firing(*names), BEGIN)
    batch = outbox.next_batch(BEGIN)
    outbox.update(firing(*names, "f"), BEGIN)
    outbox.confirm(batch, BEGIN)
    assert outbox.num_dropped == 3
    assert told(outbox) == [("firing", "d"), ("firing", "e"), ("firing", "f")]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sets(st.sampled_from("abcd")), max_size=30), st.data())
def test_the_events_of_a_webhook_replay_to_what_fires(looks, data):
    outbox, events = WebhookOutbox(), []
    for names in looks:
        outbox.update(firing(*names), BEGIN)
        if data.draw(st.booleans()):
            events += told(outbox)
    events += told(outbox)
    state = set()
    for status, name in events:
        assert (name in state) is (status == "resolved")
        state ^= {name}
    assert state == (looks[-1] if looks else set())


def test_the_body_is_alertmanagers_own_webhook():
    outbox = WebhookOutbox()
    outbox.update(firing("a"), BEGIN)
    outbox.update({}, BEGIN + 5)
    first = outbox.next_batch(BEGIN)
    assert set(first.body) == {
        "version", "groupKey", "truncatedAlerts", "status", "receiver", "groupLabels",
        "commonLabels", "commonAnnotations", "externalURL", "alerts",
    }  # fmt: skip
    outbox.confirm(first, BEGIN)
    (alert,) = outbox.next_batch(BEGIN).body["alerts"]
    assert alert["endsAt"] == "2027-01-15T08:00:05.000+00:00"
    assert (alert["status"], len(alert["fingerprint"])) == ("resolved", 16)


@pytest.mark.parametrize("outbox", [AlertmanagerOutbox(), WebhookOutbox()], ids=["am", "webhook"])
def test_an_alert_taken_over_by_another_agent_is_not_ended(outbox):
    outbox.update(firing("theirs", "ours"), BEGIN)
    while batch := outbox.next_batch(BEGIN):
        outbox.confirm(batch, BEGIN)
    outbox.drop({("theirs", "critical")})
    assert {n.labels["alertname"] for n in outbox.delivered().values()} == {"ours"}
    outbox.update({}, BEGIN + 600)
    result = ""
    while batch := outbox.next_batch(BEGIN + 600):
        result += json.dumps(batch.body)
        outbox.confirm(batch, BEGIN + 600)
    assert "ours" in result
    assert "theirs" not in result
