"""The page of metrics by framework: what is measured, relayed, or not available and why."""

import pytest

from bench import frameworks_page
from bench.framework_quantities import QUANTITIES, REASONS
from dfx_agent.catalogue.spec import by_name

BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}


def test_every_quantity_names_metrics_of_the_catalogue():
    assert [q.name for q in QUANTITIES if not set(q.metrics) <= set(by_name())] == []
    assert len(BY_NAME) == len(QUANTITIES)


def test_a_quantity_that_nobody_measures_is_relayed_by_a_framework():
    names = frameworks_page.columns()
    cells = {q.name: {frameworks_page.cell(q, name) for name in names} for q in QUANTITIES}
    assert [name for name, found in cells.items() if not found & {"M", "R", "M R"}] == []


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
