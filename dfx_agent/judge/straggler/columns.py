"""What is computed of one step alone, remembered for as long as the step is judged.

A judgement takes 32 steps, of which 31 were in the one before: of a thousand ranks most of its time
would go to them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from dfx_agent.facts.steps import RankStep, Step

Measure = Callable[[RankStep], float | None]
Row = Sequence[float]  # a value of each rank in one step

_Made = TypeVar("_Made")


class Columns:
    """Of the same ranks, in the order of the newest step; ``see`` the steps that are judged first.

    Of others everything is made each time that it is asked for.
    """

    def __init__(self) -> None:
        self._ranks: list[str] = []
        self._known: dict[int, tuple[Step, dict[object, object]]] = {}

    def see(self, steps: Sequence[Step]) -> None:
        """These are judged now, oldest first: others are let go."""
        ranks = list(steps[-1].ranks)
        known = self._known if ranks == self._ranks else {}
        self._known = {id(step): known.get(id(step)) or (step, {}) for step in steps}
        self._ranks = ranks

    def is_known(self, step: Step, measure: Measure) -> bool:
        """Whether every rank has it, and not 0."""
        return self._of(step, ("known", measure), lambda: all(map(measure, step.ranks.values())))

    def column(self, step: Step, measure: Measure) -> list[float]:
        return self._of(
            step, measure, lambda: [measure(step.ranks[rank]) or 0.0 for rank in self._ranks]
        )

    def others(self, step: Step, measure: Measure) -> list[float]:
        """For each rank the median of all others."""
        return self._of(
            step, ("others", measure), lambda: others_medians(self.column(step, measure))
        )

    def excess(self, step: Step, measure: Measure) -> list[float]:
        """Beyond the median of the others."""
        return self._of(step, ("excess", measure), lambda: self._excess(step, measure))

    def part(self, step: Step, cell: tuple[str, ...]) -> Step:
        """The same of some of its ranks, and the same object each time."""
        return self._of(step, ("part", cell), lambda: only(step, cell))

    def _excess(self, step: Step, measure: Measure) -> list[float]:
        return minus(self.column(step, measure), self.others(step, measure))

    def _of(self, step: Step, what: object, make: Callable[[], _Made]) -> _Made:
        """Of a step that was not seen it is made each time."""
        _, made = self._known.get(id(step), (step, {}))
        if what not in made:
            made[what] = make()
        return made[what]  # type: ignore[return-value]


class Remembered:
    """Of one role: columns of all its ranks, and of each cell of peers."""

    def __init__(self) -> None:
        self.whole = Columns()
        self._cells: dict[tuple[str, ...], Columns] = {}

    def of(self, cells: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], Columns]:
        """Of these cells; others are let go."""
        self._cells = {cell: self._cells.get(cell) or Columns() for cell in cells}
        return self._cells


def only(step: Step, cell: Sequence[str]) -> Step:
    """The same of some of its ranks."""
    ranks = {label: step.ranks[label] for label in cell}
    return Step(step.step, step.begin_seconds, step.num_lost, ranks, step.num_steps)


def others_medians(values: Sequence[float]) -> list[float]:
    """For each of at least two values the median of all others, with one sort for all."""
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
