"""Writes what is generated from the catalogue of alerts: ``python -m alert_rules.build [FOLDER]``.

FOLDER is the repository's root by default. Below it: alert_rules/generated (rules, PrometheusRule
manifest, promtool tests), deploy/alertmanager.yml, docs/runbook.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from alert_rules.cases import CASES
from alert_rules.promtool import test_file
from dfx_agent.catalogue.alerts import runbook
from dfx_agent.catalogue.alerts.declared import PROMETHEUS_ALERTS
from dfx_agent.catalogue.alerts.prometheus import Links, configuration, manifest, rule_files

ROOT = Path(__file__).resolve().parents[1]


def render() -> dict[str, str]:
    """Path below the root -> text, the same at every call."""
    rules = rule_files(PROMETHEUS_ALERTS, Links())
    made = {f"alert_rules/generated/{name}": text for name, text in rules.items()}
    for name in rules:
        area = name.removeprefix("dfx-").removesuffix(".rules.yaml")
        alerts = [alert for alert in PROMETHEUS_ALERTS if alert.area == area]
        tests = f"alert_rules/generated/dfx-{area}.tests.yaml"
        made[tests] = test_file(name, alerts, CASES)
    made["alert_rules/generated/dfx.prometheusrule.yaml"] = manifest(PROMETHEUS_ALERTS, Links())
    made["deploy/alertmanager.yml"] = configuration(PROMETHEUS_ALERTS)
    made["docs/runbook.md"] = runbook.render(PROMETHEUS_ALERTS)
    return made


def main(arguments: list[str]) -> int:
    """Exit code: 0 written."""
    root = Path(arguments[0]) if arguments else ROOT
    made = render()
    for path in (root / "alert_rules" / "generated").glob("*.yaml"):
        if str(path.relative_to(root)) not in made:
            path.unlink()
    for name, text in made.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
