"""Tokens of the newest steps against those before: dynamic batches that got out of control."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from dfx_agent.snapshot import StepRow

NUM_STEPS = 34
_NUM_NEWEST = 2
_FEWEST_STEPS = 10


def sustained_ratios(rows: Iterable[StepRow]) -> dict[str, float]:
    """Role -> the smaller of the newest two steps' tokens / median of the 32 before.

    ``rows``: the newest ``NUM_STEPS`` of every role, oldest first. Steps that a rank did not finish
    are left out; a role without 10 steps that had tokens is left out too.
    """
    tokens: dict[str, list[float]] = {}
    for row in rows:
        num_tokens = sum(sum(cell.tokens.values()) for cell in row.cells)
        if num_tokens and not row.missing_ranks:
            tokens.setdefault(row.role, []).append(num_tokens)
    return {role: _ratio(counts) for role, counts in tokens.items() if len(counts) >= _FEWEST_STEPS}


def _ratio(counts: Sequence[float]) -> float:
    return min(counts[-_NUM_NEWEST:]) / median(counts[:-_NUM_NEWEST])
