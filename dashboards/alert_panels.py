"""Alerts on every board: what fires now, with its runbook, and since when."""

from __future__ import annotations

from typing import Any

from dashboards.common import (
    ORANGE,
    RED,
    TEAL,
    YELLOW,
    Board,
    as_table,
    background,
    cells,
    columns,
    instant,
    prop,
    query,
    states,
    transform,
    values,
)
from dashboards.promql import begin, by, lately, of_run, recent
from dfx_agent.catalogue.alerting import ALERT_ACTIVE
from dfx_agent.catalogue.alerts.declared import PROMETHEUS_ALERTS
from dfx_agent.catalogue.per_rank import RANK_UP

NOTHING = "nothing fires"
# Prometheus' own series; alerts about agents carry no run.
OF_PROMETHEUS = 'alertname=~"Dfx.+",severity!="none",run=~"$run|"'
SEVERITIES = values(
    ("critical", "critical", RED), ("warning", "warning", ORANGE), ("none", "–", TEAL),
)  # fmt: skip


def loud() -> str:
    """Alerts that are delivered; informative alerts have panels of their own."""
    return of_run(ALERT_ACTIVE, severity="~critical|warning")


def annotate(board: Board) -> None:
    """A mark in every panel where an alert begins."""
    begun = begin("alertname, severity", loud())
    board.annotation("Alert", ORANGE, begun, text="{{severity}}: {{alertname}}")


def alerts(board: str) -> Any:
    """``board``: its uid. It has the texts of its own alerts; other alerts are links by name.

    So a new alert changes one board.
    """
    firing = by("alertname, severity", "max", lately(loud()))
    panel = cells(
        "Alerts",
        "What the agent itself found to fire within the window 'Averaged over', as Prometheus and "
        "Alertmanager would with the rules of `dfx-agent assets`. 'nothing fires' is normal. Click "
        "an alert for its runbook: what it means, what to look at, what to do.",
    )
    calm = f"0 * max({recent(of_run(RANK_UP))})"
    for label, text in (("alertname", NOTHING), ("severity", "none")):
        calm = f'label_replace({calm}, "{label}", "{text}", "", "")'
    panel.with_target(as_table(instant(f"{firing} or ({calm} unless on () {firing})")))
    panel.transformations(
        [
            columns({"alertname": "Alert", "severity": "Severity", "Value": "Value"}),
            transform("sortBy", fields={}, sort=[{"field": "Severity"}]),
        ]
    )
    panel.override_by_name("Value", [prop("custom.hidden", True)])
    panel.override_by_name(
        "Severity", [background(), prop("mappings", [SEVERITIES]), prop("custom.width", 80)]
    )
    # the agent's page has the runbook; its anchors are the alerts' names
    link = {"title": "Runbook", "url": "http://$agent/runbook#${__value.raw}", "targetBlank": True}
    own = (alert for alert in PROMETHEUS_ALERTS if alert.board == board)
    in_words = values(*((alert.name, f"{alert.name}: {alert.summary}", RED) for alert in own))
    return panel.override_by_name("Alert", [prop("links", [link]), prop("mappings", [in_words])])


def history() -> Any:
    panel = states(
        "Alerts over time",
        "When each alert fired: evaluated by the agent and, if its rules are loaded, by Prometheus "
        "(yellow: condition true, `for` not over). Both should agree; one line "
        f"'{NOTHING}' is normal. `--alertmanager` and prometheus.yml set which one delivers.",
        [values(("0", "calm", TEAL), ("1", "pending", YELLOW), ("2", "FIRING", RED))],
    )
    panel.with_target(query(f"2 * {by('alertname', 'max', of_run(ALERT_ACTIVE))}", "{{alertname}}"))
    of_rules = (
        f'ALERTS{{{OF_PROMETHEUS},alertstate="firing"}} * 2'
        f' or ALERTS{{{OF_PROMETHEUS},alertstate="pending"}}'
    )
    panel.with_target(query(by("alertname", "max", of_rules), "{{alertname}} (Prometheus)", "B"))
    calm = f"0 * {by('run', 'max', of_run(RANK_UP))} unless on (run) {of_run(ALERT_ACTIVE)}"
    panel.with_target(query(calm, NOTHING, "C"))
    return panel.max_data_points(300)
