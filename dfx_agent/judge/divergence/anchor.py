"""Detects a loss that grows slowly but steadily, by comparing it with its lowest level of the run.

The moving baseline follows a loss that grows by 6 % per step, so the growth looks normal. The
lowest level of the whole run does not follow. The check needs a loss that has never been negative,
because a ratio of levels means nothing otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dfx_agent.judge.divergence.bands import median_of_sorted
from dfx_agent.judge.divergence.saved_state import SavedState

ANCHOR_FACTOR = 100.0
LEVEL_ROWS = 16
_LATEST_ROWS = 4


@dataclass(frozen=True)
class SavedAnchor(SavedState):
    """Saved state of an ``Anchor``. Format 2 wrote an empty row for a signal without an anchor."""

    rows: tuple[float, ...] = ()
    """The last 16 losses, oldest first."""
    best: float | None = None
    """Lowest level so far; None before 16 losses."""
    is_signed: bool = False
    """Whether the loss has ever been negative."""


class Anchor:
    """Stores the last 16 losses of a run and the lowest level (median of 16) it has had."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._rows: deque[float] = deque(maxlen=LEVEL_ROWS)
        self._best: float | None = None
        self._is_signed = False

    def observe(self, value: float) -> None:
        self._is_signed |= value < 0
        self._rows.append(value)
        if len(self._rows) == LEVEL_ROWS:
            level = max(self._least, _median(self._rows))
            self._best = level if self._best is None else min(self._best, level)

    @property
    def is_left(self) -> bool:
        """Whether the last 16 losses are all above 100 times the lowest level, without falling."""
        if self._best is None or self._is_signed:
            return False
        if min(self._rows) < ANCHOR_FACTOR * self._best:
            return False
        rows = list(self._rows)
        return _median(rows[-_LATEST_ROWS:]) >= _median(rows[:-_LATEST_ROWS])

    def clear(self) -> None:
        """Restart: the present level becomes the normal one."""
        self._rows.clear()
        self._best = None

    def save(self) -> SavedAnchor:
        return SavedAnchor(tuple(self._rows), self._best, self._is_signed)

    def resume(self, saved: SavedAnchor) -> None:
        self._rows = deque(saved.rows, LEVEL_ROWS)
        self._best, self._is_signed = saved.best, saved.is_signed


def _median(values: Sequence[float] | deque[float]) -> float:
    return median_of_sorted(sorted(values))
