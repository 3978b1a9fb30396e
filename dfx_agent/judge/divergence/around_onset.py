"""Compares loss and reward before and after another signal left its baseline.

A gradient norm also rises when the policy begins to learn something: the first success of a sparse
reward, or new data. Then the reward is higher than before, or the loss has not risen. The KL to
the reference model grows with every step that learns. A high KL is a collapse only if the reward
is lower than before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dfx_agent.judge.divergence.bands import MAD_TO_SIGMA, median_of_sorted
from dfx_agent.judge.divergence.saved_state import SavedState

BEFORE_ROWS = 16
LEVEL_ROWS = 3
# fewer values before the onset are not enough to compare with
LEAST_ROWS = 8
UP_Z = 2.0


@dataclass(frozen=True)
class SavedAroundOnset(SavedState):
    """Saved state of an ``AroundOnset``; values are oldest first."""

    EARLIER: ClassVar = {"newest": "latest"}

    before: tuple[float, ...] = ()
    """Up to 16 values before the onset."""
    first: tuple[float, ...] = ()
    """The first three values since the onset."""
    latest: tuple[float, ...] = ()
    """The last three values since the onset."""


class AroundOnset:
    """Values of one signal (loss or reward) around the onset of a change in another signal."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=BEFORE_ROWS)
        self._first: list[float] = []
        self._latest: deque[float] = deque(maxlen=LEVEL_ROWS)

    def observe(self, value: float | None, *, is_far: bool) -> None:
        """Process one row of the other signal.

        ``value`` is None if this row did not report loss or reward. ``is_far``: whether the other
        signal is far off its baseline in this row.
        """
        if not is_far:
            self._first.clear()
            self._latest.clear()
        if value is None:
            return
        if not is_far:
            self._before.append(value)
            return
        self._latest.append(value)
        if len(self._first) < LEVEL_ROWS:
            self._first.append(value)

    @property
    def is_known(self) -> bool:
        return len(self._before) >= LEAST_ROWS and bool(self._latest)

    @property
    def is_up(self) -> bool:
        """Whether the value is higher than before the onset and has not fallen since."""
        if not self.is_known:
            return False
        usual, spread = self._usual()
        level = _median(self._latest)
        return level > usual + UP_Z * spread and level >= _median(self._first)

    @property
    def is_down(self) -> bool:
        """Whether the value is lower than before the onset."""
        if not self.is_known:
            return False
        usual, spread = self._usual()
        return _median(self._latest) < usual - spread

    def _usual(self) -> tuple[float, float]:
        """Median and robust standard deviation of the values before the onset."""
        usual = _median(self._before)
        return usual, MAD_TO_SIGMA * _median([abs(value - usual) for value in self._before])

    @property
    def is_best(self) -> bool:
        """Whether the value is higher than all values before the onset, as a reward that was 0."""
        return self.is_known and _median(self._latest) > max(self._before)

    def clear(self) -> None:
        """Drop all values; also called when the job repeats steps."""
        self._before.clear()
        self._first.clear()
        self._latest.clear()

    def save(self) -> SavedAroundOnset:
        return SavedAroundOnset(tuple(self._before), tuple(self._first), tuple(self._latest))

    def resume(self, saved: SavedAroundOnset) -> None:
        self._before = deque(saved.before, BEFORE_ROWS)
        self._first = list(saved.first)
        self._latest = deque(saved.latest, LEVEL_ROWS)


def _median(values: Sequence[float] | deque[float]) -> float:
    return median_of_sorted(sorted(values))
