"""The best long-term level of a loss: what a slow, steady blow-up cannot take along.

A window follows a loss that grows by 6 % a step, and its trend makes it the rule; the lowest level
of the run does not move. Only of a loss that has never been negative: of others a level says
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dfx_agent.judge.divergence.bands import median_of_sorted
from dfx_agent.judge.divergence.kept import Kept

ANCHOR_FACTOR = 100.0
LEVEL_ROWS = 16
_NEWEST_ROWS = 4


@dataclass(frozen=True)
class KeptAnchor(Kept):
    """Format 2 wrote an empty row where there is none."""

    rows: tuple[float, ...] = ()
    best: float | None = None
    is_signed: bool = False


class Anchor:
    """``is_left``: for 16 rows the loss is 100 times its best level, and it does not fall."""

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
        if self._best is None or self._is_signed:
            return False
        if min(self._rows) < ANCHOR_FACTOR * self._best:
            return False
        rows = list(self._rows)
        return _median(rows[-_NEWEST_ROWS:]) >= _median(rows[:-_NEWEST_ROWS])

    def clear(self) -> None:
        """What is now is normal."""
        self._rows.clear()
        self._best = None

    def kept(self) -> KeptAnchor:
        return KeptAnchor(tuple(self._rows), self._best, self._is_signed)

    def resume(self, kept: KeptAnchor) -> None:
        self._rows = deque(kept.rows, LEVEL_ROWS)
        self._best, self._is_signed = kept.best, kept.is_signed


def _median(values: Sequence[float] | deque[float]) -> float:
    return median_of_sorted(sorted(values))
