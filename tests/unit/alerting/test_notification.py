"""What receivers were told by an agent before: its end is told by the next one."""

from __future__ import annotations

import json

import pytest
from alert_scene import AGENT, look, run, state

from dfx_agent.agent.stored.document import StoredDocument
from dfx_agent.alerting import notification
from dfx_agent.alerting.alertmanager import MIN_FIRING_SECONDS, AlertmanagerOutbox
from dfx_agent.alerting.courier import Courier
from dfx_agent.alerting.live import LiveAlerts
from dfx_agent.alerting.notification import Notification
from dfx_agent.alerting.transport import Endpoint
from dfx_agent.alerting.webhook import WebhookOutbox
from dfx_agent.catalogue.alerts.declared import ALERTS
from dfx_agent.catalogue.alerts.samples import samples_of

LABELS = {"alertname": "DfxTrainingDivergence", "severity": "critical", "run": "a"}
ALERT = Notification(LABELS, {}, 1000.0, "http://page:1")


def webhook() -> Courier:
    """Never started: the test takes its posts itself."""
    return Courier("webhook", Endpoint("http://hook.example/secret"), WebhookOutbox())


def posts(courier: Courier) -> list[tuple[str, str]]:
    found = []
    while (batch := courier._outbox.next_batch(0.0)) is not None:
        (alert,) = batch.body["alerts"]
        found.append((alert["labels"]["alertname"], alert["status"]))
        courier._outbox.confirm(batch, 0.0)
    return found


@pytest.fixture
def agent(dfx_dir):
    """Makes an agent's alerts with one webhook; (alerts, webhook)."""

    def made() -> tuple[LiveAlerts, Courier]:
        hook = webhook()
        stored = StoredDocument(str(dfx_dir), "told.json", notification.DOCUMENT)
        alerts = LiveAlerts(
            None, lambda row: samples_of(row.signals) if row.signals else {}, ALERTS, [hook],
            {}, lambda: "http://page:1", "node-a", stored,
        )  # fmt: skip
        return alerts, hook

    return made


SICK = run("a", state(100, "reward", "length"))
WELL = run("a", state(101))
FOUND = "DfxTrainingDivergence"


def test_an_alert_sent_as_firing_is_resolved_after_a_restart(agent, monkeypatch):
    first, hook = agent()
    look(first, SICK)
    assert posts(hook) == [(FOUND, "firing")]
    first._save_delivered()
    second, hook = agent()
    look(second, WELL)
    assert posts(hook) == []  # it may not have been judged again yet
    monkeypatch.setattr(notification, "HOLD_SECONDS", -1.0)
    look(second, WELL)
    assert posts(hook) == [(FOUND, "resolved")]
    second._save_delivered()
    third, hook = agent()
    look(third, WELL)
    assert posts(hook) == []


def test_a_continuing_alert_is_not_sent_again_and_has_one_begin(agent, monkeypatch):
    first, hook = agent()
    look(first, SICK)
    assert posts(hook) == [(FOUND, "firing")]
    first._save_delivered()
    (begun,) = [row.since_seconds for row in first.alerts().alerts if row.alert == FOUND]
    second, hook = agent()
    look(second, SICK)
    assert posts(hook) == []
    assert [r.since_seconds for r in second.alerts().alerts if r.alert == FOUND] == [begun]
    monkeypatch.setattr(notification, "HOLD_SECONDS", 1e9)
    look(second, WELL)  # it was judged again, so its end is no gap of ours
    look(second, WELL)
    assert (FOUND, "resolved") in posts(hook)


def test_an_alert_that_was_never_accepted_is_sent_again(agent):
    first, _ = agent()
    look(first, SICK)  # nobody takes it: the receiver is away
    first._save_delivered()
    second, hook = agent()
    look(second, SICK)
    assert posts(hook) == [(FOUND, "firing")]


def test_alertmanager_gets_the_end_too():
    before = AlertmanagerOutbox()
    before.update({"k": ALERT}, 2000.0)
    before.confirm(before.next_batch(2000.0), 2000.0)
    assert before.delivered() == {"k": ALERT}
    after = AlertmanagerOutbox()
    after.resume(before.delivered())
    later = 2000.0 + MIN_FIRING_SECONDS
    after.update({}, later)
    batch = after.next_batch(later)
    assert batch.body[0]["endsAt"] == "1970-01-01T00:34:20.000+00:00"
    after.confirm(batch, later)
    assert after.delivered() == {}


def test_a_receiver_is_recognised_without_storing_its_secret():
    assert webhook().key == webhook().key
    assert "secret" not in webhook().key
    other = Courier("webhook", Endpoint("http://hook.example/other"), WebhookOutbox())
    assert other.key != webhook().key


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        7,
        {"w": None},
        {"w": {"k": {}}},
        {"w": {"k": {"labels": 1}}},
        {"w": {"k": {"labels": {}, "annotations": {}, "starts_seconds": "NaN", "page_url": ""}}},
    ],
)
def test_what_is_not_ours_is_no_memory(dfx_dir, document):
    (dfx_dir / "told.json").write_text(json.dumps(document))
    result: list[str] = []
    stored = StoredDocument(str(dfx_dir), "told.json", notification.DOCUMENT, result.append)
    assert stored.load() is None
    assert stored.problem.startswith("cannot use told.json (")
    assert result == [stored.problem]
    assert "\n" not in stored.problem


def test_it_survives_as_text():
    reported = {"webhook:1": {ALERT.fingerprint: ALERT}}
    assert notification.DOCUMENT.read(notification.DOCUMENT.dumped(reported)) == reported


def test_what_an_agent_before_this_one_wrote_is_read():
    before = {
        "w": {"k": {"labels": LABELS, "annotations": {}, "starts_seconds": 1e3, "page_url": ""}}
    }
    read = notification.DOCUMENT.read(json.dumps(before).encode())
    assert read == {"w": {"k": Notification(LABELS, {}, 1000.0, "")}}


def test_two_nodes_have_two_alerts_where_each_sees_its_own_part():
    def labels(alerts: LiveAlerts, alert) -> dict[str, str]:
        firing = type("F", (), {"alert": alert})
        return dict(alerts._labels_of(WELL, firing))

    by_area = {alert.area: alert for alert in ALERTS}
    nodes = [LiveAlerts(None, lambda row: {}, ALERTS, node=name) for name in ("a", "b")]
    assert AGENT.node == "node"
    for area, alert in by_area.items():
        one, other = (labels(node, alert) for node in nodes)
        assert (one == other) == (area in {"stability", "rollout"}), area
        assert one.get("node") in {None, "a"}
