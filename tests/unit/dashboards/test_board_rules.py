"""Rules of grafana/dashboard-linter and of our own, over the committed boards."""

import ast
import itertools
import math
import re
import subprocess

import pytest
from board_files import BOARDS, ROOT, annotation_queries, filled, panel_queries, panels, visible

from dfx_agent.catalogue.alerts.declared import PROMETHEUS_ALERTS
from dfx_agent.catalogue.spec import by_name
from dfx_agent.web import runbook

QUERIES = list(panel_queries())
EVERY_QUERY = [*QUERIES, *annotation_queries()]
METRICS = {f"{m.name}_info" if m.kind == "info" else m.sample_name: m for m in by_name().values()}
METRICS |= {f"{m.name}_bucket": m for m in by_name().values() if m.kind == "histogram"}
VARIABLES = {"run": "r", "role": "trainer", "lane": "0", "datasource": "d", "agent": "a:1",
             "metric": "dfx_turns", "counter": "dfx_tokens_total", "other": "dfx_signal_value",
             "other_counter": "dfx_micro_batches_total", "own": "dfx_host_cpu_ratio",
             "own_counter": "dfx_agent_polls_total",
             "histogram": "dfx_engine_queue_time_seconds_bucket"}  # fmt: skip
# of a panel that is repeated for each metric that the run has
NAMED_BY_A_VARIABLE = '{__name__="$'
MAX_PANELS, MAX_OPEN_ROWS = 25, 2
LEAST_DISTANCE = 0.12  # in OKLab
# rows that turn linear RGB into what is seen (Machado 2009, severity 1), and the two of OKLab
COLOUR_BLIND = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                   (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                     (-0.011820, 0.042940, 0.968881)),
}  # fmt: skip
TO_LMS = ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
          (0.0883024619, 0.2817188376, 0.6299787005))  # fmt: skip
OF_LMS = ((0.2104542553, 0.793617785, -0.0040720468), (1.9779984951, -2.428592205, 0.4505937099),
          (0.0259040371, 0.7827717662, -0.808675766))  # fmt: skip
# No rate sees their first count, because there is no series before it: boards show the total.
BEGIN_WITH_A_FINDING = {
    "dfx_gpu_mem_ooms_total", "dfx_gpu_mem_stage_ooms_total",
    "dfx_gpu_mem_stage_alloc_retries_total", "dfx_ledger_mismatches_total",
}  # fmt: skip
EVERY_PANEL = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]


def selectors(text):
    """(name, everything before it, everything after it) of each of our metrics in a query."""
    for match in re.finditer(r"\bdfx_\w+", text):
        yield match[0], text[: match.start()], text[match.end() :]


def named(broken):
    return [f"{name}: {panel['title']}" for name, panel in broken]


def test_boards_import_the_catalogue_and_the_rules_and_nothing_else_of_ours():
    for path in (ROOT / "dashboards").glob("*.py"):
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
        ours = {node.module for node in nodes if node.module.startswith("dfx_agent")}
        rooms = {module.split(".")[1] for module in ours}
        assert rooms <= {"catalogue", "rules"}, path


def test_there_are_the_seven_boards():
    assert set(BOARDS) == {
        "dfx-e2e", "dfx-ranks", "dfx-memory", "dfx-stability", "dfx-pipeline", "dfx-native",
        "dfx-agent",
    }  # fmt: skip
    assert {name: board["uid"] for name, board in BOARDS.items()} == {n: n for n in BOARDS}


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_ids_are_unique_and_panels_are_few(board):
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    ids = [panel["id"] for panel in (*panels(board), *rows)]
    assert len(ids) == len(set(ids))
    assert all(number > 0 for number in ids)
    assert len(visible(board)) <= MAX_PANELS


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_nothing_overlaps_or_leaves_the_grid(board):
    for folded in (row.get("panels") or () for row in board["panels"] if row["type"] == "row"):
        assert_fits(folded)
    assert_fits(board["panels"])


def assert_fits(panels_of_a_row):
    cells = []
    for panel in panels_of_a_row:
        at = panel["gridPos"]
        columns = range(at["x"], at["x"] + at["w"])
        assert columns.stop <= 24
        cells += itertools.product(columns, range(at["y"], at["y"] + at["h"]))
    assert len(cells) == len(set(cells))


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_at_most_two_rows_are_open_and_only_marks_of_findings_are_on(board):
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    assert sum(not row["collapsed"] for row in rows) <= MAX_OPEN_ROWS
    marks = {row["name"] for row in board["annotations"]["list"] if row["enable"]}
    assert marks <= {"Alert", "Verdict", "Diverging"}
    assert board["refresh"] == "5s"


@pytest.mark.parametrize("seen", [None, *COLOUR_BLIND.values()], ids=["normal", *COLOUR_BLIND])
def test_colour_blind_people_can_distinguish_states(seen):
    (tile,) = (p for name, p in EVERY_PANEL if (name, p["title"]) == ("dfx-stability", "Training"))
    (mapping,) = tile["fieldConfig"]["defaults"]["mappings"]
    colours = [oklab(c, seen) for c in {row["color"] for row in mapping["options"].values()}]
    assert len(colours) == 5
    assert min(math.dist(*pair) for pair in itertools.combinations(colours, 2)) > LEAST_DISTANCE
    assert not [name for name in ("RdYlGn", "Spectral", "Turbo") if f'"{name}"' in str(BOARDS)]


def oklab(colour, seen):
    """The colour in OKLab; ``seen``: three rows that turn linear RGB into what is seen."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    linear = linear if seen is None else [max(0.0, value) for value in times(seen, linear)]
    return times(OF_LMS, [value ** (1 / 3) for value in times(TO_LMS, linear)])


def times(rows, values):
    return [sum(a * b for a, b in zip(row, values, strict=True)) for row in rows]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_the_first_row_is_the_verdict(board):
    assert board["panels"][0]["type"] == "row"
    assert board["panels"][0]["title"].startswith("Verdict")


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_boards_are_read_only_and_say_where_they_come_from(board):
    assert board["editable"] is False
    assert "make generate" in board["description"]
    queried = [v for v in board["templating"]["list"] if v["type"] == "query"]
    assert {variable["refresh"] for variable in queried} == {2}, "on time range change"
    titles = [link["title"] for link in board["links"]]
    assert titles == ["dfx boards", "Page of the agent", "Runbook"]


def test_every_panel_has_title_unit_and_a_description_that_says_what_is_normal():
    texts = [(name, p) for name, p in EVERY_PANEL if len(p.get("description", "")) < 60]
    assert named(texts) == []
    units = [(n, p) for n, p in EVERY_PANEL if not p["fieldConfig"]["defaults"].get("unit")]
    assert named(units) == []


def test_titles_are_unique_in_a_board():
    keys = [(name, panel["title"]) for name, panel in EVERY_PANEL]
    assert len(keys) == len(set(keys))


def test_the_data_source_is_the_variable_everywhere():
    for _, panel in EVERY_PANEL:
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_state_timelines_have_a_legend_and_no_pager():
    timelines = [panel for _, panel in EVERY_PANEL if panel["type"] == "state-timeline"]
    assert len(timelines) >= 4
    for panel in timelines:
        assert panel["fieldConfig"]["defaults"]["color"]["mode"] == "palette-classic"
        assert panel["options"]["legend"]["showLegend"]
        assert "perPage" not in panel["options"]


def test_every_query_has_the_run_and_only_known_metrics():
    assert len(QUERIES) > 100
    for query in EVERY_QUERY:
        if "ALERTS{" in query.text:  # Prometheus' own; those about agents carry no run
            assert 'run=~"$run|"' in query.text, query
            continue
        found = [name for name, _, _ in selectors(query.text)]
        assert found or NAMED_BY_A_VARIABLE in query.text, query
        assert set(found) <= METRICS.keys(), query
        assert 'run="$run"' in query.text, query
        for name, _, after in selectors(query.text):
            if "run" in METRICS[name].labels:
                assert after.startswith('{run="$run"'), f"{query}: {name}"


def test_counters_are_only_read_as_rates_and_gauges_never():
    for query in EVERY_QUERY:
        for name, before, _ in selectors(query.text):
            is_rate = before.endswith(("rate(", "increase("))
            if name not in BEGIN_WITH_A_FINDING:
                grows = METRICS[name].kind in {"counter", "histogram"}
                assert is_rate == grows, f"{query}: {name}"


def test_windows_follow_the_scrape_interval_or_the_reader():
    allowed = {"$__rate_interval", "$window", "$__range", "10m"}
    for query in EVERY_QUERY:
        assert set(re.findall(r"\[(.+?)\]", query.text)) <= allowed, query


def test_instant_queries_look_back_over_a_failed_scrape():
    instant = [query for query in QUERIES if query.is_instant]
    assert len(instant) > 20
    for query in instant:
        for name, _, after in selectors(query.text):
            assert re.match(r"(\{.*?\})?\[", after), f"{query}: {name}"


def test_every_label_of_a_legend_survives_the_aggregation():
    """Also: a series per rank is aggregated by rank, so that a restart adds no row."""
    for query in QUERIES:
        stored = set(re.findall(r"\w+", " ".join(re.findall(r"by \((.*?)\)", query.text))))
        assert set(re.findall(r"{{(\w+)}}", query.legend)) <= stored, query


def test_the_whole_batch_differs_from_its_parts():
    """max over environments or scopes would show the worst part as if it were the whole."""
    parts = {"env", "subset", "agent", "scope", "variant", "stat", "domain"}
    for query in EVERY_QUERY:
        stored = set(re.findall(r"\w+", " ".join(re.findall(r"by \((.*?)\)", query.text))))
        for name, _, after in selectors(query.text):
            matched = set(re.findall(r"(\w+)[=!]", re.match(r"(\{.*?\})?", after)[0]))
            left = set(METRICS[name].labels) & parts - matched - stored
            assert not left, f"{query}: {name} {left}"


def test_every_alert_leads_to_its_runbook_and_every_board_shows_alerts():
    for name, board in BOARDS.items():
        marks = [row["expr"] for row in board["annotations"]["list"] if row["name"] == "Alert"]
        assert len(marks) == 1, name
    tables = [(name, panel) for name, panel in EVERY_PANEL if panel["title"] == "Alerts"]
    assert len(tables) == 5
    for board, panel in tables:
        (column,) = [
            o for o in panel["fieldConfig"]["overrides"] if o["matcher"]["options"] == "Alert"
        ]
        shown = {prop["id"]: prop["value"] for prop in column["properties"]}
        assert shown["links"][0]["url"] == "http://$agent/runbook#${__value.raw}"
        own = {alert.name for alert in PROMETHEUS_ALERTS if alert.board == board}
        # texts of other boards' alerts are not here: a new alert would change every board
        assert set(shown["mappings"][0]["options"]) == own
    page = runbook.page()
    assert all(f'id="{alert.name}"' in page for alert in PROMETHEUS_ALERTS)


def test_a_heatmap_has_a_row_for_each_series():
    heatmaps = [panel for _, panel in EVERY_PANEL if panel["type"] == "heatmap"]
    assert len(heatmaps) >= 10
    for panel in heatmaps:
        (target,) = panel["targets"]
        assert panel["options"]["calculate"] is False
        is_histogram = target["legendFormat"] == "{{le}}"
        assert target.get("format", "time_series") == ("heatmap" if is_histogram else "time_series")
        assert target["legendFormat"] in ("{{rank}}", "{{signal}}", "{{le}}")


def test_an_override_by_expression_fits_a_whole_name():
    """Grafana puts ^ and $ around an expression without slashes: "^p99" alone fits no series."""
    found = 0
    for name, panel in EVERY_PANEL:
        legends = [target.get("legendFormat", "") for target in panel["targets"]]
        labels = "all", "max"  # values that some label has
        names = [re.sub(r"{{(\w+)}}", label, legend) for legend in legends for label in labels]
        for override in panel["fieldConfig"].get("overrides", ()):
            if override["matcher"]["id"] == "byRegexp":
                found += 1
                pattern = override["matcher"]["options"]
                assert any(re.fullmatch(pattern, text) for text in names), (name, pattern)
    assert found >= 8


def test_promtool_parses_every_query(promtool_binary, tmp_path):
    rules = ["groups:", "- name: boards", "  rules:"]
    for number, query in enumerate(EVERY_QUERY):
        text = filled(query.text, **VARIABLES).replace("'", "''")
        rules += [f"  - record: board:query_{number}", f"    expr: '{text}'"]
    path = tmp_path / "boards.rules.yaml"
    path.write_text("\n".join(rules))
    checked = subprocess.run(
        [promtool_binary, "check", "rules", "--lint=none", str(path)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(EVERY_QUERY)} rules found" in checked.stdout
