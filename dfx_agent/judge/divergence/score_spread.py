"""Whether the samples of a step differ in their score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dfx_agent.catalogue.native.signal_sources import SCORE_MAX, SCORE_MIN
from dfx_agent.judge.divergence.saved_state import SavedState

LEARNING_STEPS = 8


@dataclass(frozen=True)
class SavedSpread(SavedState):
    """Saved state of a ``ScoreSpread``."""

    num_identical: int | None
    num_different: int
    best: float | None = None
    is_solved: bool = False


class ScoreSpread:
    """Counts steps in which all samples have the same score. Such a step teaches nothing.

    If all samples have the best score of the run, the task is solved and nothing is wrong.
    """

    def __init__(self) -> None:
        # steps in a row with identical scores; None until scores are reported
        self.num_identical: int | None = None
        self.num_different = 0
        self._best: float | None = None
        self._is_solved = False

    def observe(self, values: Mapping[str, float]) -> None:
        highest, lowest = values.get(SCORE_MAX, math.nan), values.get(SCORE_MIN, math.nan)
        if not (math.isfinite(highest) and math.isfinite(lowest)):
            return
        self._best = highest if self._best is None else max(self._best, highest)
        self._is_solved = lowest == self._best
        if highest == lowest:
            self.num_identical = (self.num_identical or 0) + 1
        else:
            self.num_identical = 0
            self.num_different += 1

    @property
    def had_signal(self) -> bool:
        """Whether scores have differed in at least 8 steps, and the task is not solved."""
        return self.num_different >= LEARNING_STEPS and not self._is_solved

    def save(self) -> SavedSpread:
        return SavedSpread(self.num_identical, self.num_different, self._best, self._is_solved)

    def resume(self, saved: SavedSpread) -> None:
        self.num_identical, self.num_different = saved.num_identical, saved.num_different
        self._best, self._is_solved = saved.best, saved.is_solved
