"""The ledger at /metrics: what nobody told has no series."""

from dfx_agent.exporters.prometheus.exporter import add_ledger
from dfx_agent.exporters.prometheus.ranks import Page
from dfx_agent.snapshot import LedgerMismatches, LedgerRow, LedgerState, RankRow, RunRow, TimeSplit


def a_run(*rows: LedgerRow, ledger: LedgerState | None = None) -> RunRow:
    rank = RankRow(
        "actor", "0", 0, 1, "node", 1, 0, "live", 0.0, None, 7, None, (), TimeSplit(), TimeSplit(),
        None, {}, {}, None, (), (), 0, 0, 0, 0, ledger=rows,
    )  # fmt: skip
    return RunRow("r", "verl", 0, 0.0, (rank,), (), (), ledger=ledger)


def shown(run: RunRow) -> dict[str, list]:
    page = Page()
    add_ledger(page, run, "n")
    return {
        sample.name: [s.value for s in family.samples]
        for family in page.families.values()
        for sample in family.samples
    }


def test_a_boundary_without_mask_and_groups_has_no_series_for_them():
    bare = LedgerRow("update", 7, 8, None, None, None, "ab", "cd", 3, 0, 0, 0, 0, None)
    names = shown(a_run(bare))
    assert names["dfx_ledger_samples"] == [8]
    assert names["dfx_ledger_nonfinite_samples_total"] == [0]
    assert not any(word in name for name in names for word in ("mask", "group", "sampled"))
    whole = LedgerRow("update", 7, 8, 0.5, 2, 4, "ab", "cd", 3, 1, 2, 1, 7, 5)
    names = shown(a_run(whole))
    assert names["dfx_ledger_mask_ratio"] == [0.5]
    assert names["dfx_ledger_group_samples"] == [2, 4]
    assert names["dfx_ledger_sampled_rows"] == [5]
    assert names["dfx_ledger_left_out_crossings_total"] == [7]


def test_a_run_without_ledger_has_no_series_and_mismatches_carry_boundary_and_kind():
    assert shown(a_run()) == {}
    found = LedgerMismatches("update", "moved", 4), LedgerMismatches("update", "ids", 1)
    names = shown(a_run(ledger=LedgerState(9, 1, 2, found)))
    assert names["dfx_ledger_mismatches_total"] == [4, 1]
    assert names["dfx_ledger_skipped_steps_total"] == [1]
    assert names["dfx_ledger_incomplete_crossings_total"] == [2]
