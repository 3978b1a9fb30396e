"""The cases of the catalogue as promtool tests: positive, negative and restart for every alert."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from alert_rules.cases.case import Cases, Sample
from dfx_agent.catalogue.alerts.alert import Alert
from dfx_agent.catalogue.alerts.conditions import Promql
from dfx_agent.catalogue.alerts.prometheus import HEAD, dump, seconds_text
from dfx_agent.catalogue.alerts.promql import number

TARGET = {"job": "dfx", "instance": "node0:9931"}
RUN = "it"

_INTERVAL_SECONDS = 30
_LASTING_SECONDS = 300
_GONE_SECONDS = 600
_RISEN_SECONDS = 120
_GAP_SECONDS = 60
# longer than any window over which a counter's growth is looked at
_FORGOTTEN_SECONDS = 1200


def test_file(rule_file: str, alerts: Iterable[Alert], cases: dict[tuple[str, str], Cases]) -> str:
    """The tests of one rule file; KeyError for an alert without cases."""
    return HEAD + dump(
        {
            "rule_files": [rule_file],
            "evaluation_interval": f"{_INTERVAL_SECONDS}s",
            "tests": [
                test
                for alert in alerts
                for test in _tests(alert, cases[alert.name, alert.severity])
            ],
        }
    )


def _tests(alert: Alert, cases: Cases) -> Iterator[dict[str, Any]]:
    title = f"{alert.name} {alert.severity}"
    end = alert.for_seconds + _LASTING_SECONDS
    if any(sample.gone for series in cases.fires for sample in series):
        end += _GONE_SECONDS
    for kind, group in (("fires", cases.fires), ("is silent", cases.silent)):
        for i, series in enumerate(group, start=1):
            inputs = [_input(sample, _values(sample, end)) for sample in series]
            yield _test(
                f"{title} {kind} {i}", inputs, [_expect(alert, cases, end, fires=kind == "fires")]
            )
    yield _restart(alert, cases, f"{title} restart of the agent", end)


def _restart(alert: Alert, cases: Cases, name: str, end: int) -> dict[str, Any]:
    """The agent goes for a minute and comes back: states last, counters begin at 0 again.

    Alerts on agents themselves must not fire for that.
    """
    is_about_agents = isinstance(alert.condition, Promql) and bool(cases.silent)
    series = cases.silent[0] if is_about_agents else cases.fires[0]
    are_counters = [sample.before is not None for sample in series]
    again = _FORGOTTEN_SECONDS if any(are_counters) else alert.for_seconds + _LASTING_SECONDS
    inputs = [_input(sample, _restarted(sample, end, again)) for sample in series]
    # growth is still seen over the gap, a state is not
    is_firing_in_gap = alert.keep_seconds > _GAP_SECONDS or all(are_counters) or not cases.silent
    fires = (True, is_firing_in_gap, not any(are_counters))
    times = (end, end + _GAP_SECONDS, end + _GAP_SECONDS + again)
    expected = [
        _expect(alert, cases, seconds, fires=state and not is_about_agents)
        for seconds, state in zip(times, fires, strict=True)
    ]
    return _test(name, inputs, expected)


def _test(
    name: str, inputs: list[dict[str, str]], expected: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": name,
        "interval": f"{_INTERVAL_SECONDS}s",
        "input_series": inputs,
        "promql_expr_test": expected,
    }


def _expect(alert: Alert, cases: Cases, seconds: int, *, fires: bool) -> dict[str, Any]:
    """Firing is what Prometheus itself says in ALERTS, with the labels that routes rely on."""
    where = f'alertname="{alert.name}",severity="{alert.severity}",alertstate="firing"'
    labels = {"job": TARGET["job"], "run": RUN}
    carried = ", ".join(f'{name}="{labels[name]}"' for name in cases.carries)
    samples = [{"labels": f"{{{carried}}}", "value": 1}] if fires else []
    return {
        "expr": f"max by (job, run) (ALERTS{{{where}}})",
        "eval_time": seconds_text(seconds),
        "exp_samples": samples,
    }


def _input(sample: Sample, values: str) -> dict[str, str]:
    run = {"run": RUN} if "run" in sample.metric.labels else {}
    labels = {**TARGET, **run, **dict(sample.labels)}
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return {"series": f"{sample.metric.sample_name}{{{text}}}", "values": values}


def _values(sample: Sample, end: int) -> str:
    if sample.gone:
        before = sample.value if sample.before is None else sample.before
        lived = _constant(before, end - _GONE_SECONDS - _INTERVAL_SECONDS)
        return f"{lived} {number(sample.value)} stale"
    if sample.before is None:
        return _constant(sample.value, end)
    before = _constant(sample.before, end - _RISEN_SECONDS)
    return f"{before} {_constant(sample.value, _RISEN_SECONDS - _INTERVAL_SECONDS)}"


def _restarted(sample: Sample, end: int, again: int) -> str:
    value = sample.value if sample.before is None else 0
    missing = _GAP_SECONDS // _INTERVAL_SECONDS - 1
    gap = f"0+0x{missing}" if sample.metric.name == "up" else f"stale _x{missing}"
    return f"{_values(sample, end)} {gap} {_constant(value, again)}"


def _constant(value: float, seconds: int) -> str:
    """From now on for so long, both ends included."""
    return f"{number(value)}+0x{seconds // _INTERVAL_SECONDS}"
