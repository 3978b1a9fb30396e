"""The runbook as a page; ``runbook_url`` of every alert leads there."""

from __future__ import annotations

from collections.abc import Iterable

from dfx_agent.base.html import template
from dfx_agent.catalogue.alerts.alert import Alert
from dfx_agent.catalogue.alerts.declared import PROMETHEUS_ALERTS


def page(alerts: Iterable[Alert] = PROMETHEUS_ALERTS) -> str:
    """One section per alert; its anchors are the alert's name, as it is and in lower case."""
    by_name = {alert.name: alert for alert in alerts}
    return template(__package__, "runbook.html").render(alerts=by_name.values())
