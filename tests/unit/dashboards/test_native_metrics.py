"""Whatever a framework is known to send can be looked at: on a panel of its own or a shared one."""

import re

import pytest
from board_files import BOARDS, ROOT, panel_queries, panels

from dfx_agent.catalogue.native import frameworks, load
from dfx_agent.catalogue.spec import by_name, catalogue

NATIVE = BOARDS["dfx-native"]
VARIABLES = {variable["name"]: variable for variable in NATIVE["templating"]["list"]}
SENT = {entry.metric for name in frameworks() for entry in load(name).entries()}
TOLD = sorted(SENT | {m.name for m in by_name().values() if m.source == "native"})


def names_of_class(text):
    (option,) = (o for o in VARIABLES["class"]["options"] if o["text"] == text)
    return option["value"]


def drawn_by(variable):
    """The query of the variable, with every class chosen, and of which panel it is."""
    text = VARIABLES[variable]["query"]["query"].replace("${class:raw}", names_of_class("all"))
    matchers = re.findall(r'__name__(=~|!~)"(.*?)"', text)
    (panel,) = (p for p in panels(NATIVE) if p.get("repeat") == variable)
    assert f'__name__="${variable}"' in panel["targets"][0]["expr"]
    return panel["title"], matchers


def where(name):
    """Board and panel that show the metric; a query of its own before a repeated one."""
    sample = by_name()[name].sample_name
    for query in panel_queries():
        if re.search(rf"\b{sample}\b", query.text):
            return query.board, query.panel
    for variable in ("metric", "counter"):
        title, matchers = drawn_by(variable)
        if all(bool(re.fullmatch(p, sample)) == (op == "=~") for op, p in matchers):
            return "dfx-native", title
    return None


@pytest.mark.parametrize("name", TOLD)
def test_every_native_metric_is_on_a_board(name):
    found = where(name)
    assert found is not None, name
    print(f"{name}: {found[0]}, {found[1]}")


def test_counters_are_drawn_by_their_growth_and_gauges_as_they_are():
    for name in TOLD:
        metric = by_name()[name]
        _, matchers = drawn_by("counter" if metric.kind == "counter" else "metric")
        named = [bool(re.fullmatch(p, metric.sample_name)) == (op == "=~") for op, p in matchers]
        assert all(named), name


def test_each_class_of_the_catalogue_can_be_chosen_and_holds_its_own():
    for group, metrics in catalogue():
        native = {m.sample_name for m in metrics if m.name in TOLD}
        if native:
            assert set(names_of_class(group.replace("_", " ")).split("|")) == native, group


def test_grafana_splits_the_classes_as_they_are_written():
    """It takes text and value from one string: apart by colons, choices by commas."""
    choices = [part.split(" : ") for part in VARIABLES["class"]["query"].split(", ")]
    options = [[option["text"], option["value"]] for option in VARIABLES["class"]["options"]]
    assert choices == options


def test_a_key_that_no_mapping_knows_is_shown_under_its_own_name():
    assert where("dfx_native_metric") == (
        "dfx-native", "Keys that are not mapped, with their latest value",
    )  # fmt: skip


def test_metrics_that_no_release_sends_are_marked_in_the_catalogue_and_on_the_board():
    waiting = {m.name: m for m in by_name().values() if m.upstream}
    assert {"dfx_preemptions_per_second", "dfx_prefill_tokens", "dfx_decode_tokens",
            "dfx_partial_batch_ratio", "dfx_partial_buffer_samples"} <= waiting.keys()  # fmt: skip
    page = (ROOT / "docs" / "metrics.md").read_text()
    (panel,) = (p for p in NATIVE["panels"] if p.get("repeat") == "metric")
    for name, metric in waiting.items():
        assert name in panel["description"]
        assert f"Waiting for upstream: {metric.upstream}" in page
        measured = re.findall(r"dfx_engine_\w+", metric.upstream)
        assert {by_name()[m.removesuffix("_total")].source for m in measured} <= {"engine"}
