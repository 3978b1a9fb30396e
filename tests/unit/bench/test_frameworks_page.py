"""The page of metrics by framework: what is measured, relayed, or not available and why."""

import re
from pathlib import Path

import pytest

from bench import frameworks_page
from bench.framework_quantities import QUANTITIES, REASONS
from dfx_agent.catalogue.alerts.declared import ALERTS
from dfx_agent.catalogue.spec import by_name

ROOT = Path(__file__).parents[3]

BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}


def test_every_quantity_names_metrics_of_the_catalogue():
    assert [q.name for q in QUANTITIES if not set(q.metrics) <= set(by_name())] == []
    assert len(BY_NAME) == len(QUANTITIES)


def test_a_quantity_that_nobody_measures_is_relayed_by_a_framework():
    names = frameworks_page.columns()
    cells = {q.name: {frameworks_page.cell(q, name) for name in names} for q in QUANTITIES}
    assert [name for name, found in cells.items() if not found & {"M", "R", "M R"}] == []


def test_the_walk_names_metrics_alerts_and_tests_that_exist():
    walk = frameworks_page._WALK.read_text()
    metrics = {metric.sample_name for metric in by_name().values()}
    assert set(re.findall(r"`(dfx_\w+)`", walk)) - metrics == set()
    assert set(re.findall(r"`(Dfx\w+)`", walk)) - {alert.name for alert in ALERTS} == set()
    paths = set(re.findall(r"`(tests/[\w/.]+)`", walk))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_reason_is_in_the_table_and_every_one_is_used():
    cells = {
        frameworks_page.cell(q, name) for q in QUANTITIES for name in frameworks_page.columns()
    }
    assert cells - {"M", "R", "M R"} == set(REASONS)


@pytest.mark.parametrize(
    ("quantity", "framework", "cell"),
    [
        ("rollout", "trl", "M"),
        ("rollout", "slime", "M R"),
        ("rollout", "prime_rl", "R"),  # its orchestrator generates without a function for it
        ("values", "openrlhf", "M"),
        ("values", "lightrft", "e"),  # "values" is a column of its batches, and no stage
        ("reward", "transformers", "b"),
        ("reward", "areal", "d"),
        ("shape ledger: shapes, mask, NaN", "verl", "M"),
        ("shape ledger: shapes, mask, NaN", "skyrl", "f"),
        ("shape ledger: shapes, mask, NaN", "ms_swift", "f"),
        ("prompt and response tokens by rank", "unsloth", "M"),
        ("prompt and response tokens by rank", "unilab", "c"),
        ("partial rollouts", "miles", "M R"),
        ("loss", "lightning", "M"),
        ("entropy", "lightrft", "a"),
    ],
)
def test_a_cell_is_what_adapter_and_name_map_have(quantity, framework, cell):
    assert frameworks_page.cell(BY_NAME[quantity], framework) == cell
