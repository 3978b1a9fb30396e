"""The runbook as a page: where ``runbook_url`` of every alert leads."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from dfx_agent.rules.alert import Alert
from dfx_agent.rules.declared import PROMETHEUS_ALERTS

_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>dfx-agent: runbook</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem;
       color-scheme: light dark }
section { border-top: 1px solid #8884; padding-top: .5rem }
:target { outline: 2px solid #597cdf; outline-offset: .5rem }
</style>
<h1>Runbook</h1>
<p><a href="/">The page of this agent</a>
"""


def page() -> str:
    """One section for each alert name, anchors are the name as it is, and in lower case."""
    alerts = {alert.name: alert for alert in PROMETHEUS_ALERTS}
    return _HEAD + "".join(line for alert in alerts.values() for line in _section(alert))


def _section(alert: Alert) -> Iterator[str]:
    yield f'<section id="{alert.name.lower()}"><h2 id="{alert.name}">{alert.name}</h2>\n'
    book = alert.runbook
    for title, text in (
        ("Meaning", book.meaning),
        ("Impact", book.impact),
        ("Diagnosis", book.diagnosis),
        ("Mitigation", book.mitigation),
    ):
        yield f"<h3>{title}</h3><p>{escape(text)}</p>\n"
    yield "</section>\n"
