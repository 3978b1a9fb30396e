"""Caches values that depend on one step only.

A verdict uses 32 steps, and 31 of them were used by the verdict before. With a thousand ranks,
recomputing them would take most of the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from dfx_agent.facts.steps import RankStep, Step

Measure = Callable[[RankStep], float | None]
Row = Sequence[float]  # a value of each rank in one step

_Value = TypeVar("_Value")


class Columns:
    """Cached values of a fixed set of ranks. Call ``set_steps`` before using them.

    For a step that was not set, values are computed at each call.
    """

    def __init__(self) -> None:
        self._ranks: list[str] = []
        self._cache: dict[int, tuple[Step, dict[object, object]]] = {}

    def set_steps(self, steps: Sequence[Step]) -> None:
        """Cache these steps (oldest first) and drop others. Ranks are those of the last step."""
        ranks = list(steps[-1].ranks)
        cache = self._cache if ranks == self._ranks else {}
        self._cache = {id(step): cache.get(id(step)) or (step, {}) for step in steps}
        self._ranks = ranks

    def is_known(self, step: Step, measure: Measure) -> bool:
        """Whether every rank has a value other than 0."""
        return self._get(step, ("known", measure), lambda: all(map(measure, step.ranks.values())))

    def column(self, step: Step, measure: Measure) -> list[float]:
        """The value of each rank, 0 if unknown."""
        return self._get(
            step, measure, lambda: [measure(step.ranks[rank]) or 0.0 for rank in self._ranks]
        )

    def others(self, step: Step, measure: Measure) -> list[float]:
        """For each rank, the median of all other ranks."""
        return self._get(
            step, ("others", measure), lambda: others_medians(self.column(step, measure))
        )

    def excess(self, step: Step, measure: Measure) -> list[float]:
        """For each rank, its value minus the median of all other ranks."""
        return self._get(step, ("excess", measure), lambda: self._excess(step, measure))

    def part(self, step: Step, cell: tuple[str, ...]) -> Step:
        """The step with only the ranks of ``cell``; the same object at each call."""
        return self._get(step, ("part", cell), lambda: only(step, cell))

    def _excess(self, step: Step, measure: Measure) -> list[float]:
        return minus(self.column(step, measure), self.others(step, measure))

    def _get(self, step: Step, key: object, compute: Callable[[], _Value]) -> _Value:
        _, values = self._cache.get(id(step), (step, {}))
        if key not in values:
            values[key] = compute()
        return values[key]  # type: ignore[return-value]


class RoleColumns:
    """Cached columns of one role: of all its ranks, and of each cell of peers."""

    def __init__(self) -> None:
        self.all_ranks = Columns()
        self._cells: dict[tuple[str, ...], Columns] = {}

    def by_cell(self, cells: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], Columns]:
        """Columns of these cells; other cells are dropped."""
        self._cells = {cell: self._cells.get(cell) or Columns() for cell in cells}
        return self._cells


def only(step: Step, cell: Sequence[str]) -> Step:
    """The step with only the ranks of ``cell``."""
    ranks = {label: step.ranks[label] for label in cell}
    return Step(step.step, step.begin_seconds, step.num_lost, ranks, step.num_steps)


def others_medians(values: Sequence[float]) -> list[float]:
    """For each of at least two values, the median of all other values. Sorts only once."""
    ordered = sorted(values)
    upper, is_odd = divmod(len(values) - 1, 2)
    medians = []
    for value in values:
        at = bisect_left(ordered, value)
        right = ordered[upper + (at <= upper)]
        medians.append(right if is_odd else (ordered[upper - 1 + (at < upper)] + right) / 2)
    return medians


def minus(values: Row, others: Row) -> list[float]:
    return [value - other for value, other in zip(values, others, strict=True)]
