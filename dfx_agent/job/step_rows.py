"""A step of one role as a row of a Snapshot: what each rank did in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from dfx_agent.facts.steps import IDLE, RankStep
from dfx_agent.snapshot import StepCell, StepRow, TimeSplit

# steps whose tokens count: the latest 2 against the 32 before
_NUM_STEPS, _NUM_LATEST, _FEWEST_STEPS = 34, 2, 10
_NUM_BALANCED = 8


def step_row(
    role: str,
    step: int,
    span: tuple[float, float],
    ranks: Mapping[str, RankStep],
    missing: Iterable[str] = (),
) -> StepRow:
    """The row of a step. ``span``: first start and last end of a rank, Unix seconds.

    ``missing``: ranks that are still in the step.
    """
    cells = tuple(_cell(label, ranks[label]) for label in sorted(ranks, key=rank_order))
    bubble = _bubble(cells, span)
    return StepRow(step, role, *span, tuple(sorted(missing, key=rank_order)), bubble, cells)


def with_late(row: StepRow, ranks: Mapping[str, RankStep], end_seconds: float) -> StepRow:
    """The row with the cells of late ranks. ``end_seconds``: end of the last late rank."""
    labels = {cell.rank for cell in row.cells}
    late = [_cell(label, rank_step) for label, rank_step in ranks.items() if label not in labels]
    if not late:
        return row
    cells = tuple(sorted((*row.cells, *late), key=lambda cell: rank_order(cell.rank)))
    end = max(row.end_seconds, end_seconds)
    missing = tuple(label for label in row.missing_ranks if label not in ranks)
    bubble = _bubble(cells, (row.begin_seconds, end))
    return replace(row, end_seconds=end, missing_ranks=missing, bubble_ratio=bubble, cells=cells)


def without(row: StepRow, label: str) -> StepRow | None:
    """The row without the cell of this rank; None if no other rank is in it."""
    cells = tuple(cell for cell in row.cells if cell.rank != label)
    return replace(row, cells=cells) if cells else None


def rank_order(label: str) -> tuple[int, str]:
    """Sort key: rank 2 before rank 10, processes without a rank last."""
    head = label.partition("@")[0].partition(".")[0]
    return (int(head), label) if head.isdecimal() else (1 << 31, label)


def split_of(rank_step: RankStep) -> TimeSplit:
    """How a rank spent its time in a step. Waits for peers include the transfer of data."""
    stages = {name: s for (kind, name), s in rank_step.parts.items() if kind == "stage"}
    waits: dict[str, dict[str, float]] = {}
    for (kind, stage), seconds in rank_step.waits.items():
        waits.setdefault(kind, {})[stage] = seconds
    idle = rank_step.parts.get(IDLE, 0.0)
    active = rank_step.wall_seconds - sum(rank_step.waits.values()) - idle
    active = max(0.0, round(active, 9))  # clocks have nanosecond resolution
    return TimeSplit(rank_step.wall_seconds, active, idle, stages, waits)


def _bubble(cells: Sequence[StepCell], span: tuple[float, float]) -> float | None:
    """Share of the ranks' time in which they were not active."""
    seconds = span[1] - span[0]
    active = sum(cell.split.active_seconds for cell in cells)
    # times are rounded: a rank that is always active is active for a little more than the step
    return max(0.0, 1 - active / (len(cells) * seconds)) if seconds > 0 else None


def _cell(label: str, rank_step: RankStep) -> StepCell:
    return StepCell(label, split_of(rank_step), rank_step.tokens or {}, rank_step.num_samples)


def sustained_ratios(rows: Iterable[StepRow]) -> dict[str, float]:
    """Role -> the smaller token count of the latest two steps / median of the 32 before.

    ``rows`` of every role, oldest first: the latest 34 count. Steps that a rank did not finish are
    left out; a role without 10 steps that had tokens is left out too.
    """
    tokens = {role: _tokens(of_role[-_NUM_STEPS:]) for role, of_role in _by_role(rows).items()}
    return {role: _ratio(counts) for role, counts in tokens.items() if len(counts) >= _FEWEST_STEPS}


def latest_ratios(rows: Iterable[StepRow]) -> dict[str, float]:
    """Role -> tokens of the latest step / median of the 32 steps before the latest two."""
    tokens = {role: _tokens(of_role[-_NUM_STEPS:]) for role, of_role in _by_role(rows).items()}
    return {
        role: counts[-1] / median(counts[:-_NUM_LATEST])
        for role, counts in tokens.items()
        if len(counts) >= _FEWEST_STEPS
    }


def token_imbalances(rows: Iterable[StepRow]) -> dict[str, float]:
    """Role -> tokens of the rank with most / mean of its ranks, median of the latest 8 steps.

    Steps that a rank did not finish, or without tokens on two ranks, are left out.
    """
    found: dict[str, float] = {}
    for role, of_role in _by_role(rows).items():
        complete = (row for row in of_role if not row.missing_ranks)
        ranks = ([sum(cell.tokens.values()) for cell in row.cells] for row in complete)
        ratios = [max(n) / fmean(n) for n in ranks if sum(map(bool, n)) > 1][-_NUM_BALANCED:]
        if len(ratios) == _NUM_BALANCED:
            found[role] = median(ratios)
    return found


def _by_role(rows: Iterable[StepRow]) -> dict[str, list[StepRow]]:
    by_role: dict[str, list[StepRow]] = {}
    for row in rows:
        by_role.setdefault(row.role, []).append(row)
    return by_role


def _tokens(rows: Iterable[StepRow]) -> list[float]:
    complete = (row for row in rows if not row.missing_ranks)
    counts = (sum(sum(cell.tokens.values()) for cell in row.cells) for row in complete)
    return [count for count in counts if count]


def _ratio(counts: Sequence[float]) -> float:
    return min(counts[-_NUM_LATEST:]) / median(counts[:-_NUM_LATEST])
