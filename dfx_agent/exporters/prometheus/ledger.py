"""The shape ledger as Prometheus families, by the catalogue's names."""

from __future__ import annotations

from dfx_agent.catalogue import ledger
from dfx_agent.exporters.prometheus.ranks import Labels, Page
from dfx_agent.snapshot import LedgerRow, RunRow


def add_ledger(page: Page, run: RunRow, node: str) -> None:
    """All boundaries of all ranks; nothing for a run that reports no ledger."""
    for rank in run.ranks:
        for row in rank.ledger:
            _add_row(page, (run.run, rank.role, rank.rank, row.boundary), row)
    if run.ledger is not None:
        page.add(ledger.JUDGED_STEPS, (run.run, node), run.ledger.num_judged_steps)
        page.add(ledger.SKIPPED_STEPS, (run.run, node), run.ledger.num_skipped_steps)
        page.add(ledger.INCOMPLETE, (run.run, node), run.ledger.num_incomplete_crossings)
        for found in run.ledger.mismatches:
            page.add(ledger.MISMATCHES, (run.run, node, found.boundary, found.kind), found.count)


def _add_row(page: Page, key: Labels, row: LedgerRow) -> None:
    page.add(ledger.CROSSINGS, key, row.num_crossings)
    page.add(ledger.SAMPLES, key, row.num_samples)
    page.add(ledger.NONFINITE, key, row.num_nonfinite)
    page.add(ledger.MISALIGNED, key, row.num_misaligned)
    page.add(ledger.UNREAD, key, row.num_unread)
    page.add(ledger.LEFT_OUT, key, row.num_left_out)
    page.info(ledger.SCHEMA, (*key, row.schema))
    page.add(ledger.SHAPES, key, int(row.shapes, 16))
    for metric, labels, value in (
        (ledger.MASK_RATIO, key, row.mask_ratio),
        (ledger.SAMPLED, key, row.num_sampled),
        (ledger.GROUP_SAMPLES, (*key, "min"), row.smallest_group),
        (ledger.GROUP_SAMPLES, (*key, "max"), row.largest_group),
    ):
        if value is not None:
            page.add(metric, labels, value)
