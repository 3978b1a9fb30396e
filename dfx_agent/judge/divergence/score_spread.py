"""Whether the samples of a step differ in their score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dfx_agent.judge.divergence.kept import Kept

# the highest and lowest score of a step; equal for many steps: nothing to learn from
SCORE_MAX, SCORE_MIN = "score_max", "score_min"
LEARNING_STEPS = 8


@dataclass(frozen=True)
class KeptSpread(Kept):
    """Of one run; ``best`` score so far."""

    num_identical: int | None
    num_different: int
    best: float | None = None
    is_solved: bool = False


class ScoreSpread:
    """Whether the samples of a step differ in their score: without a difference nothing is learned.

    ``num_identical`` is None until scores are reported. Where all have the best score of the run
    the task is solved, and no signal is lost.
    """

    def __init__(self) -> None:
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
        return self.num_different >= LEARNING_STEPS and not self._is_solved

    def kept(self) -> KeptSpread:
        return KeptSpread(self.num_identical, self.num_different, self._best, self._is_solved)

    def resume(self, kept: KeptSpread) -> None:
        self.num_identical, self.num_different = kept.num_identical, kept.num_different
        self._best, self._is_solved = kept.best, kept.is_solved
