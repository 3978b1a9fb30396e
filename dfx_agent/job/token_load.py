"""Tokens of the newest steps against those before: dynamic batches that got out of control."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from dfx_agent.snapshot import StepRow

_NUM_STEPS = 34
_NUM_NEWEST = 2
_FEWEST_STEPS = 10


def sustained_ratios(rows: Iterable[StepRow]) -> dict[str, float]:
    """Role -> the smaller of the newest two steps' tokens / median of the 32 before.

    ``rows`` of every role, oldest first: the newest 34 count. Steps that a rank did not finish are
    left out; a role without 10 steps that had tokens is left out too.
    """
    by_role: dict[str, list[StepRow]] = {}
    for row in rows:
        by_role.setdefault(row.role, []).append(row)
    tokens = {role: _tokens(of_role[-_NUM_STEPS:]) for role, of_role in by_role.items()}
    return {role: _ratio(counts) for role, counts in tokens.items() if len(counts) >= _FEWEST_STEPS}


def _tokens(rows: Iterable[StepRow]) -> list[float]:
    complete = (row for row in rows if not row.missing_ranks)
    counts = (sum(sum(cell.tokens.values()) for cell in row.cells) for row in complete)
    return [count for count in counts if count]


def _ratio(counts: Sequence[float]) -> float:
    return min(counts[-_NUM_NEWEST:]) / median(counts[:-_NUM_NEWEST])
