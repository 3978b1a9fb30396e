"""Steps of one role as series of seconds: the step, each stage, each kind of wait, idle time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dfx_agent.snapshot import StepCell, StepRow

_MOST_STEPS = 500
# first steps compile, warm up and fill caches
_WARM_UP_STEPS = 3
IDLE = "outside all stages"


@dataclass(frozen=True, slots=True)
class StepParts:
    """One step: means over its ranks."""

    step: int
    wall_seconds: float
    seconds: Mapping[str, float]
    """By stage, "waiting: KIND", or ``IDLE``."""
    num_tokens: float | None
    """Of one rank; None if the job counts no tokens."""


def main_role(rows: Sequence[StepRow]) -> str | None:
    """The role with the most steps, and of those the one with the most ranks."""
    num_steps = Counter(row.role for row in rows)
    num_cells = Counter(row.role for row in rows for _ in row.cells)
    return max(num_steps, key=lambda role: (num_steps[role], num_cells[role]), default=None)


def step_parts(rows: Sequence[StepRow], role: str) -> list[StepParts]:
    """The latest steps of a role, without warm-up and without steps that a rank did not finish."""
    latest = {row.step: row for row in rows if row.role == role}  # of repeated steps the last
    steps = [latest[number] for number in sorted(latest)][_WARM_UP_STEPS:]
    return [_parts(row) for row in steps if row.cells and not row.missing_ranks][-_MOST_STEPS:]


def _parts(row: StepRow) -> StepParts:
    sums: Counter[str] = Counter()
    for cell in row.cells:
        sums.update(_seconds(cell))
    num_ranks = len(row.cells)
    tokens = [sum(_counted(cell.tokens)) for cell in row.cells if cell.tokens]
    return StepParts(
        row.step,
        sum(cell.split.wall_seconds for cell in row.cells) / num_ranks,
        {name: seconds / num_ranks for name, seconds in sums.items()},
        sum(tokens) / num_ranks if tokens and sum(tokens) else None,
    )


def _counted(tokens: Mapping[str, float]) -> Sequence[float]:
    """Tokens of a rank; a total that is reported replaces the sum of its kinds."""
    return (tokens["total"],) if "total" in tokens else tuple(tokens.values())


def _seconds(cell: StepCell) -> dict[str, float]:
    split = cell.split
    waits = {
        f"waiting: {kind}": sum(by_stage.values()) for kind, by_stage in split.wait_seconds.items()
    }
    return {**split.stage_seconds, **waits, IDLE: split.idle_seconds}
