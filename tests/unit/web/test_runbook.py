"""The page that notifications link to."""

import re
from dataclasses import replace

from dfx_agent.catalogue.alerts.declared import PROMETHEUS_ALERTS
from dfx_agent.web.runbook import page


def test_every_alert_has_one_section_with_its_anchor():
    text = page()
    anchors = re.findall(r'<section id="(\w+)">', text)
    assert len(anchors) == len(set(anchors))
    assert set(anchors) == {alert.name.lower() for alert in PROMETHEUS_ALERTS}
    for alert in PROMETHEUS_ALERTS:
        section = text.split(f'<section id="{alert.name.lower()}">')[1].split("</section>")[0]
        assert re.findall(r"<h3>(\w+)", section) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]


def test_text_is_escaped():
    hostile = "<script>alert('x')</script>"
    first = PROMETHEUS_ALERTS[0]
    book = replace(first.runbook, meaning=hostile, impact=hostile)
    text = page([replace(first, runbook=book)])
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") == 2
