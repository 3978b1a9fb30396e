"""Alerts of living runs: who is told what, under which labels, since when."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from alert_scene import AGENT, Told, look, run, state
from hypothesis import given, settings
from hypothesis import strategies as st

from dfx_agent.alerting import live
from dfx_agent.alerting.evaluator import Evaluator, metrics_read
from dfx_agent.alerting.live import LiveAlerts
from dfx_agent.alerting.notification import fingerprint
from dfx_agent.catalogue import agent as about_agent
from dfx_agent.catalogue.alerts.alert import Alert, Runbook
from dfx_agent.catalogue.alerts.conditions import Compare, Every, Grows, series
from dfx_agent.catalogue.alerts.declared import ALERTS
from dfx_agent.catalogue.alerts.samples import samples_of
from dfx_agent.snapshot import RunRow, Snapshot, Verdict


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def alerts(told: Told) -> LiveAlerts:
    def samples(row: RunRow):
        return {} if row.signals is None else samples_of(row.signals)

    labels = {"job": "dfx", "cluster": "a"}
    return LiveAlerts(None, samples, ALERTS, [told], labels, lambda: "http://page:1")


class Stepping:
    """A source whose run ``a`` makes steps; its ``signals`` are asked for without a snapshot."""

    def __init__(self) -> None:
        self.signals = state(100)
        self.verdicts: tuple[Verdict, ...] = ()

    def snapshot(self) -> Snapshot:
        row = replace(run("a", self.signals), verdicts=self.verdicts)
        return Snapshot(0.0, AGENT, (row,))


def test_a_symptom_is_evaluated_at_the_next_look_and_a_sound_step_is_not(told, monkeypatch):
    monkeypatch.setattr(live, "EVALUATE_SECONDS", 3600.0)
    source = Stepping()
    alerts = LiveAlerts(source, lambda row: samples_of(row.signals), ALERTS, [told])
    alerts.follow_symptoms(lambda: {"a": source.signals, "without signals": None})
    seen = []
    for signals in (state(100), state(101), state(102, "reward", "length"), state(103)):
        source.signals = signals
        alerts._poll()
        seen.append((alerts.alerts().num_evaluations, len(told.firing)))
    assert seen == [(1, 0), (1, 0), (2, 1), (3, 0)]


def test_a_verdict_that_finds_something_is_evaluated_at_the_next_look(told, monkeypatch):
    monkeypatch.setattr(live, "EVALUATE_SECONDS", 3600.0)
    source = Stepping()
    alerts = LiveAlerts(source, lambda row: samples_of(row.signals), ALERTS, [told])
    alerts.follow_verdicts()
    looks = []
    for verdicts in (
        (), (Verdict("hang", "clear", "a", "s"),), (Verdict("hang", "found", "a", "s", ("3",)),),
        (Verdict("hang", "found", "a", "other words", ("3",)),), (),
    ):  # fmt: skip
        source.verdicts = verdicts
        alerts._poll()
        looks.append(alerts.alerts().num_evaluations)
    assert looks == [1, 1, 2, 2, 3]


def test_each_run_has_its_own_alerts_with_labels_and_links(alerts, told):
    look(alerts, run("a b", state(100, "reward", "length")), run("quiet", state(100)))
    (found,) = told.firing.values()
    assert found.labels == {
        "alertname": "DfxTrainingDivergence", "severity": "critical", "area": "stability",
        "run": "a b", "job": "dfx", "cluster": "a",
    }  # fmt: skip
    assert found.page_url == "http://page:1/#run=a%20b"
    assert "reward up since step 90" in found.annotations["description"]
    rows = alerts.alerts().alerts
    assert rows[0].alert == "DfxTrainingDivergence"
    assert {row.is_inhibited for row in rows[1:]} == {True}


def test_the_begin_stays_while_it_fires_and_is_new_the_next_time(alerts, told):
    begins = []
    for row, active in enumerate((["reward"], ["reward"], [], ["reward"])):
        look(alerts, run("a", state(row, *active)))
        begins += [n.starts_seconds for n in told.firing.values()]
    assert begins[0] == begins[1] < begins[2]


def test_a_sent_alert_continues_if_another_alert_covers_it(alerts, told):
    look(alerts, run("a", state(1, "entropy", "length")))
    assert told.names == {("DfxTrainingUnstable", "a")}
    look(alerts, run("a", state(2, "entropy", "length", "reward")))
    assert told.names == {("DfxTrainingUnstable", "a"), ("DfxTrainingDivergence", "a")}
    look(alerts, run("a", state(3)))
    assert told.names == set()


def test_a_run_that_is_gone_has_no_alerts(alerts, told):
    look(alerts, run("a", state(1, "reward", "length")))
    look(alerts)
    assert told.names == set()
    assert alerts.alerts().alerts == ()


def test_a_run_without_signals_is_evaluated_too(alerts, told):
    look(alerts, run("a", None))
    assert told.names == set()
    assert alerts.alerts().num_evaluations == 1


def test_a_failure_is_counted_and_alerts_stay(alerts, told):
    look(alerts, run("a", state(1, "reward", "length")))
    alerts._source = None  # every evaluation fails from here on
    alerts._guarded_evaluate()
    assert alerts.alerts().num_errors == 1
    assert told.names == {("DfxTrainingDivergence", "a")}


# ------------------------------------------------------------------------ the evaluator over time


def alert(name: str = "DfxTest", **fields) -> Alert:
    condition = Compare(series(about_agent.GUEST_DROPS), ">", 0)
    runbook = Runbook("m.", "i.", "d.", "m.")
    return Alert(name, "warning", "agent", condition, "s", runbook, **fields)


def drops(count: float):
    return {"dfx_guest_dropped_total": [({}, count)]}


def test_what_has_to_last_fires_only_after_it_did():
    evaluator = Evaluator([alert(for_seconds=60)])
    fired = [
        bool(evaluator.observe(state(0), drops(count), now))
        for now, count in ((0, 1), (59, 1), (60, 1), (70, 0), (80, 1), (139, 1), (140, 1))
    ]
    assert fired == [False, False, True, False, False, False, True]


def test_an_alert_without_a_duration_ends_within_the_same_row():
    evaluator = Evaluator([alert()])
    assert evaluator.observe(state(7), drops(1))
    assert not evaluator.observe(state(7), drops(0))


def test_only_the_metrics_of_the_alerts_are_asked_for():
    grows = replace(alert(), condition=Every((Grows(series(about_agent.LOST_RECORDS), 300),)))
    assert metrics_read([grows]) == {"dfx_guest_lost_records"}
    assert "dfx_symptom_active" in metrics_read(ALERTS)


@settings(max_examples=300, deadline=None)
@given(
    keep=st.integers(0, 4),
    steps=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40),
)
def test_an_alert_fires_exactly_while_it_holds_and_lasts(keep, steps):
    """Rows may stand still (many looks at one step) and move by more than one."""
    evaluator, row, held_at = Evaluator([alert(keep_steps=keep)]), 0, None
    for move, holds in steps:
        row += move
        if holds:
            held_at = row
        found = evaluator.observe(state(row), drops(float(holds)))
        expected = holds or (keep > 0 and held_at is not None and row - held_at <= keep)
        if not expected:
            held_at = None
        assert bool(found) is expected


def test_a_run_that_counts_from_0_again_does_not_keep_an_alert_for_ever():
    evaluator = Evaluator([alert(keep_steps=3)])
    evaluator.observe(state(500), drops(1))
    fired = [bool(evaluator.observe(state(row), drops(0))) for row in range(6)]
    assert fired == [True, True, True, True, False, False]


# ------------------------------------------------------------------------------------- inhibition

SHIPPED = Path(__file__).resolve().parents[3] / "deploy" / "alertmanager.yml"
INHIBIT_RULES = yaml.safe_load(SHIPPED.read_text())["inhibit_rules"]
KEYS = [(alert.name, alert.severity) for alert in ALERTS]


@dataclass(frozen=True)
class Chosen:
    """Holds where the test says so."""

    key: tuple[str, str]

    def holds(self, samples) -> bool:
        return self.key in samples["chosen"]


def matches(matchers, labels) -> bool:
    """Alertmanager's matchers, read from the file on their own."""
    for text in matchers:
        name, operator, value = re.fullmatch(r'(\w+)(=~?)"(.*)"', text).groups()
        pattern = value if operator == "=~" else re.escape(value)
        if not re.fullmatch(pattern, labels.get(name, "")):
            return False
    return True


def silenced(firing):
    """Places of those that Alertmanager would not deliver, by the shipped rules."""
    return {
        i
        for i, target in enumerate(firing)
        for rule in INHIBIT_RULES
        for source in firing
        if source is not target
        and matches(rule["target_matchers"], target)
        and matches(rule["source_matchers"], source)
        and all(source.get(name) == target.get(name) for name in rule["equal"])
    }


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sets(st.sampled_from(KEYS), max_size=12), min_size=2, max_size=2))
def test_the_agent_inhibits_what_the_shipped_alertmanager_rules_do(chosen):
    at_once = [replace(a, condition=Chosen((a.name, a.severity)), for_seconds=0) for a in ALERTS]
    firing = dict(zip(("a", "b"), chosen, strict=True))
    alerts = LiveAlerts(
        None, lambda row: {"chosen": firing[row.run]}, at_once, labels={"job": "dfx"}
    )
    look(alerts, run("a", state(1)), run("b", state(1)))
    rows = alerts.alerts().alerts
    assert {(row.run, row.alert, row.severity) for row in rows} == {
        (name, *key) for name, keys in firing.items() for key in keys
    }
    expected = silenced([row.labels for row in rows])
    assert {i for i, row in enumerate(rows) if row.is_inhibited} == expected


def test_a_page_speaks_for_the_warning_of_its_name_in_its_own_run_only():
    at_once = [replace(a, condition=Chosen((a.name, a.severity)), for_seconds=0) for a in ALERTS]
    page, warning = ("DfxNonFinite", "critical"), ("DfxNonFinite", "warning")
    firing = {"a": {page, warning}, "b": {warning}}
    alerts = LiveAlerts(None, lambda row: {"chosen": firing[row.run]}, at_once)
    look(alerts, run("a", state(1)), run("b", state(1)))
    inhibited = {(row.run, row.severity): row.is_inhibited for row in alerts.alerts().alerts}
    assert inhibited == {
        ("a", "critical"): False, ("a", "warning"): True, ("b", "warning"): False,
    }  # fmt: skip


# --------------------------------------------------------------------------------------- identity


def test_the_fingerprint_is_fnv_1a_over_sorted_labels():
    assert fingerprint({}) == "cbf29ce484222325"
    labels = {"alertname": "A", "run": "ü"}
    assert fingerprint(labels) == fingerprint(dict(reversed(labels.items())))
    assert fingerprint({"ab": "c"}) != fingerprint({"a": "bc"})


def test_the_worst_comes_first():
    assert live._SEVERITIES[0] == "critical"
    assert {a.severity for a in ALERTS} <= set(live._SEVERITIES)


BAD = ("reward", "length")


def shared_by(node, told, hub):
    """The alerts of a node whose hub delivers while ``hub`` holds something."""
    alerts = LiveAlerts(None, lambda row: samples_of(row.signals), ALERTS, [told], node=node)
    alerts.share(lambda: bool(hub))
    return alerts


def test_while_the_hub_delivers_its_nodes_do_not_and_then_they_take_over():
    reported, hub = Told(), ["delivers"]
    alerts = shared_by("a", reported, hub)
    bad = run("r", state(100, *BAD))
    look(alerts, bad)
    assert reported.firing == {}
    assert [row.alert for row in alerts.alerts().alerts if not row.is_inhibited]
    hub.clear()
    look(alerts, bad)
    assert reported.names == {("DfxTrainingDivergence", "r")}
    hub.append("is back")
    look(alerts, bad)
    assert reported.firing == {}


def test_what_a_node_said_of_its_part_alone_ends_when_its_hub_is_back():
    """Left to run out, it paged minutes after the hang that had hidden it was over."""
    reported, taken_over = Told(), set()
    reported.drop = taken_over.update
    look(shared_by("a", reported, ["delivers"]), run("r", state(100, *BAD)))
    assert ("DfxStepStalled", "critical") in taken_over
    assert ("DfxStageStalled", "warning") not in taken_over


def test_an_alert_on_the_job_is_one_for_its_nodes_and_its_hub():
    of_a, of_b, of_hub = Told(), Told(), Told()
    hub = LiveAlerts(None, lambda row: samples_of(row.signals), live.of_job(ALERTS), [of_hub])
    for alerts in (shared_by("a", of_a, []), shared_by("b", of_b, []), hub):
        look(alerts, run("r", state(100, *BAD)))
    assert of_a.firing.keys() == of_b.firing.keys() == of_hub.firing.keys()
    assert of_a.firing


def test_a_node_calls_the_job_as_its_hub_does():
    reported = Told()
    alerts = LiveAlerts(None, lambda row: samples_of(row.signals), ALERTS, [reported], node="a")
    alerts.share(lambda: False, {"r": "r (b)"}.get)
    look(alerts, run("r", state(100, *BAD)))
    assert reported.names == {("DfxTrainingDivergence", "r (b)")}
    assert {row.run for row in alerts.alerts().alerts} == {"r"}


def test_the_node_alerts_on_what_only_it_knows():
    named = {(alert.name, alert.severity) for alert in live.of_job(ALERTS)}
    others = {(alert.name, alert.severity) for alert in ALERTS} - named
    assert {("DfxStepStalled", "critical"), ("DfxRankDied", "critical")} <= named
    assert {("DfxShimDropping", "warning"), ("DfxGpuMemoryRisk", "critical")} <= others
