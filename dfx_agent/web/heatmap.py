"""Ranks × steps: one number for each rank in each closed step that the agent holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dfx_agent.snapshot import RunRow, StepCell, StepRow

Measure = Literal["active", "wait", "communication", "idle", "tokens"]

_COMMUNICATION = "communication"
_COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Heatmap:
    """``values`` has a row for each of ``steps`` with a value for each of ``ranks``.

    None where a rank has no such value in a step. Seconds, or tokens for the measure "tokens".
    """

    role: str
    measure: str
    ranks: tuple[str, ...]
    steps: tuple[int, ...]
    wall_seconds: tuple[float, ...]
    values: tuple[tuple[float | None, ...], ...]


def heatmap(run: RunRow, role: str, measure: Measure, after: int = -1) -> Heatmap:
    """``role``: "" for that of the most ranks; ``after``: only steps that are newer."""
    role = role or _largest_role(run)
    ranks = tuple(row.rank for row in run.ranks if row.role == role)
    steps = [row for row in run.steps if row.role == role and row.step > after]
    value = _VALUES[measure]
    return Heatmap(
        role,
        measure,
        ranks,
        tuple(row.step for row in steps),
        tuple(round(row.end_seconds - row.begin_seconds, 4) for row in steps),
        tuple(_row(row, ranks, value) for row in steps),
    )


def _largest_role(run: RunRow) -> str:
    roles = [row.role for row in run.ranks if row.last is not None] or [r.role for r in run.ranks]
    return max(roles, key=roles.count, default="")


def _row(
    row: StepRow, ranks: tuple[str, ...], value: Callable[[StepCell], float | None]
) -> tuple[float | None, ...]:
    cells = {cell.rank: cell for cell in row.cells}
    values = (value(cells[rank]) if rank in cells else None for rank in ranks)
    return tuple(None if number is None else float(f"{number:.4g}") for number in values)


def _waited(cell: StepCell) -> float:
    return sum(sum(by_stage.values()) for by_stage in cell.split.wait_seconds.values())


def _communicated(cell: StepCell) -> float:
    waited = sum(cell.split.wait_seconds.get(_COLLECTIVE, {}).values())
    return cell.split.stage_seconds.get(_COMMUNICATION, 0.0) + waited


def _tokens(cell: StepCell) -> float | None:
    return cell.tokens.get("total", sum(cell.tokens.values())) if cell.tokens else None


_VALUES: dict[Measure, Callable[[StepCell], float | None]] = {
    "active": lambda cell: cell.split.active_seconds,
    "wait": _waited,
    "communication": _communicated,
    "idle": lambda cell: cell.split.idle_seconds,
    "tokens": _tokens,
}
