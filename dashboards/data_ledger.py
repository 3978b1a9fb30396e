"""Panels of the shape ledger: whether batches arrive as they were sent."""

from __future__ import annotations

from typing import Any

from dashboards.common import BLUE, GREY, ORANGE, colored, dashed, lines, query
from dashboards.promql import by, of_run, rate
from dfx_agent.catalogue import ledger


def mismatches() -> Any:
    panel = lines(
        "Batches that did not match, since the agent started",
        "Counted at the boundary where it was seen, by kind: samples or ids lost, mask changed, "
        "rows moved to other samples, NaN, lengths or columns that do not fit. Flat at 0 is "
        "normal. Every increase is training on wrong data: the data verdict names the tensor. "
        "Steps not compared: records were lost, or a process started or ended.",
        "none",
    )
    # the total and not its growth: a series begins with its first finding
    found = by("boundary, kind", "max", of_run(ledger.MISMATCHES))
    panel.with_target(query(found, "{{boundary}}: {{kind}}"))
    clean = f"0 * {by('run', 'max', rate(of_run(ledger.JUDGED_STEPS)))}"
    panel.with_target(query(f"{clean} unless on () {found}", "nothing found", "B"))
    skipped = by("run", "max", rate(of_run(ledger.SKIPPED_STEPS)))
    panel.with_target(query(skipped, "steps not compared, per second", "C"))
    panel.override_by_name("steps not compared, per second", [*colored(GREY), *dashed()])
    return panel.min(0)


def mask() -> Any:
    panel = lines(
        "Tokens that count, at each boundary",
        "Share of the response mask that is set. It follows the response length, and is the same "
        "at every boundary of a step. Lines that part: a stage changed the mask.",
        "percentunit",
    )
    counted = by("boundary", "avg", of_run(ledger.MASK_RATIO))
    return panel.with_target(query(counted, "{{boundary}}")).min(0).max(1).fill_opacity(0)


def groups() -> Any:
    panel = lines(
        "Samples of a group",
        "Smallest and largest group of answers to one prompt. Both at the configured number is "
        "normal; below it, answers were lost or filtered, and advantages of that group are off.",
        "none",
    )
    for ref, stat, color in (("A", "min", BLUE), ("B", "max", ORANGE)):
        size = by("boundary", stat, of_run(ledger.GROUP_SAMPLES, stat=stat))
        panel.with_target(query(size, f"{stat}, {{{{boundary}}}}", ref))
        panel.override_by_regexp(f"{stat}, .*", colored(color))
    return panel.min(0).fill_opacity(0)


def samples() -> Any:
    panel = lines(
        "Samples at each boundary",
        "Samples that crossed a boundary in the latest step, all ranks together. The same number "
        "at every boundary is normal; fewer at a later boundary: a filter, or lost samples.",
        "none",
    )
    crossed = by("boundary", "sum", of_run(ledger.SAMPLES))
    return panel.with_target(query(crossed, "{{boundary}}")).min(0).fill_opacity(0)


def tokens() -> Any:
    panel = lines(
        "Tokens at each boundary",
        "Tokens that count in the response mask of the latest step, all ranks together. The same "
        "number at every boundary is normal; fewer at a later one: samples or tokens were left "
        "out of the loss.",
        "none",
    )
    crossed = by("boundary", "sum", of_run(ledger.TOKENS))
    return panel.with_target(query(crossed, "{{boundary}}")).min(0).fill_opacity(0)


def not_finite() -> Any:
    panel = lines(
        "Samples with NaN or Inf, per second",
        "One for each tensor of a sample. Flat at 0 is normal; a peak is samples that spoil their "
        "update: the data verdict names the tensor, and the boundary where it appeared first.",
        "none",
    )
    found = by("boundary", "sum", rate(of_run(ledger.NONFINITE)))
    return panel.with_target(query(found, "{{boundary}}")).min(0).fill_opacity(0)


def checksums() -> Any:
    panel = lines(
        "Shapes of the batches: changes of their checksum",
        "How often rows or widths of a batch changed at each boundary, in the time range. Padding "
        "to the longest answer changes the width at nearly every step; with fixed widths a change "
        "is a batch that was cut or padded.",
        "none",
    )
    changed = f"changes({of_run(ledger.SHAPES)}[$__range])"
    return panel.with_target(query(by("boundary", "max", changed), "{{boundary}}")).min(0)
