"""Every metric of the catalogue is on a board or in a rule, or a reason says why it is not."""

import re

import pytest
from board_files import BOARDS, ROOT, panel_queries, panels

from dfx_agent.catalogue.spec import by_name

RULES = "".join(
    p.read_text() for p in sorted((ROOT / "alert_rules/generated").glob("*.rules.yaml"))
)
QUERIED = set(re.findall(r"\bdfx_\w+", RULES + " ".join(q.text for q in panel_queries())))
# a metric whose value is always 1: what it says is in its labels
REASONS = {
    "dfx_agent": "the list of agents in every board",
    "dfx_run": "the list of runs in every board",
    "dfx_engine": "labels of a replica, on the page under Engines",
    "dfx_ledger_schema": "a checksum as a label; the data verdict reports changes",
    "dfx_signal_detector": "parameters, for a person who reads /metrics",
    "dfx_signal_parameters": "parameters, for a person who reads /metrics",
}
NATIVE = BOARDS["dfx-native"]
VARIABLES = {variable["name"]: variable for variable in NATIVE["templating"]["list"]}


def listed_by(variable):
    """Sample names that the variable of a repeated panel can have."""
    text = VARIABLES[variable]["query"]["query"]
    if "${class:raw}" in text:
        return {
            name for option in VARIABLES["class"]["options"] for name in option["value"].split("|")
        }
    (names,) = re.findall(r'__name__=~"(.*?)"', text)
    return set(names.split("|"))


def samples_of(metric):
    endings = {"info": "_info", "histogram": "_bucket", "counter": "_total"}
    return metric.name + endings.get(metric.kind, "")


REPEATED = {panel["repeat"]: panel for panel in panels(NATIVE) if panel.get("repeat")}
LISTED = {name for variable in REPEATED for name in listed_by(variable)}


@pytest.mark.parametrize("metric", by_name().values(), ids=by_name())
def test_a_metric_is_on_a_board_or_in_a_rule_or_has_a_reason(metric):
    is_shown = samples_of(metric) in QUERIED | LISTED
    assert is_shown != (metric.name in REASONS), metric.name


def test_reasons_are_of_metrics_that_exist():
    assert set(REASONS) <= by_name().keys()


def test_a_variable_lists_only_metrics_that_its_panel_can_draw():
    kinds = {"metric": "gauge", "other": "gauge", "own": "gauge", "histogram": "histogram"}
    metrics = {samples_of(metric): metric for metric in by_name().values()}
    for variable, panel in REPEATED.items():
        text = panel["targets"][0]["expr"]
        assert f'__name__="${variable}"' in text
        if variable in {"metric", "counter"}:
            continue  # test_native_metrics.py
        for name in listed_by(variable):
            assert metrics[name].kind == kinds.get(variable, "counter"), name
            assert ("run" in metrics[name].labels) == ("own" not in variable), name
