"""Notices the next stage of a curriculum: a planned change, which is no collapse.

The prompts become harder at once, so reward, length and entropy leave their baselines. If the run
reports its stage, they get new ones when it rises. The size of an update has no reason to change,
so KL, clip fraction and gradient norm keep their baselines.
"""

from __future__ import annotations

from collections.abc import Mapping

from dfx_agent.catalogue.native.signal_sources import CURRICULUM

MOVED_BY_PROMPTS = frozenset({"reward", "entropy", "response_length", "truncation"})
# a number that rises more often is no stage: it would leave no baseline to compare with
LEAST_ROWS = 16


class Curriculum:
    """The stage of the latest row, and the number of rows that have reported it."""

    def __init__(self) -> None:
        self._stage: float | None = None
        self._num_rows = 0

    def has_risen(self, values: Mapping[str, float]) -> bool:
        """Process one row. Returns whether it is the first of a later stage."""
        stage = values.get(CURRICULUM)
        if stage is None or stage == self._stage:
            self._num_rows += stage is not None
            return False
        before, num_rows = self._stage, self._num_rows
        self._stage, self._num_rows = stage, 1
        is_whole = stage == stage // 1
        return before is not None and stage > before and is_whole and num_rows >= LEAST_ROWS

    def save(self) -> tuple[float, ...]:
        return () if self._stage is None else (self._stage, float(self._num_rows))

    def resume(self, saved: tuple[float, ...]) -> None:
        self._stage, self._num_rows = (saved[0], int(saved[1])) if saved else (None, 0)
