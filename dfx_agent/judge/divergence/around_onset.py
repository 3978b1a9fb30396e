"""What loss and reward did since another signal went far above its baseline.

A gradient norm rises as well when something begins to be learned: the first success of a sparse
reward, new data. Then the reward is higher than it was, or the loss is where it was, lower, or
falling. The KL to the reference grows with every step that learns: it is far off its baseline where
learning has begun, and that is a collapse only where the reward is lower than it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dfx_agent.judge.divergence.bands import MAD_TO_SIGMA, median_of_sorted
from dfx_agent.judge.divergence.kept import Kept

BEFORE_ROWS = 16
LEVEL_ROWS = 3
# fewer of before are no baseline
LEAST_ROWS = 8
UP_Z = 2.0


@dataclass(frozen=True)
class KeptAroundOnset(Kept):
    """Values of the other signal's rows, oldest first."""

    before: tuple[float, ...] = ()
    first: tuple[float, ...] = ()
    newest: tuple[float, ...] = ()


class AroundOnset:
    """Raw values, with their sign: 16 of before the onset, the first and newest three since."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=BEFORE_ROWS)
        self._first: list[float] = []
        self._newest: deque[float] = deque(maxlen=LEVEL_ROWS)

    def observe(self, value: float | None, *, is_far: bool) -> None:
        """Each row that reports the other signal; None where this value was not reported."""
        if not is_far:
            self._first.clear()
            self._newest.clear()
        if value is None:
            return
        if not is_far:
            self._before.append(value)
            return
        self._newest.append(value)
        if len(self._first) < LEVEL_ROWS:
            self._first.append(value)

    @property
    def is_known(self) -> bool:
        return len(self._before) >= LEAST_ROWS and bool(self._newest)

    @property
    def is_up(self) -> bool:
        """Above what it was before, and not falling since."""
        if not self.is_known:
            return False
        usual, spread = self._usual()
        level = _median(self._newest)
        return level > usual + UP_Z * spread and level >= _median(self._first)

    @property
    def is_down(self) -> bool:
        """Lower than it was before."""
        if not self.is_known:
            return False
        usual, spread = self._usual()
        return _median(self._newest) < usual - spread

    def _usual(self) -> tuple[float, float]:
        """Median and robust deviation of before."""
        usual = _median(self._before)
        return usual, MAD_TO_SIGMA * _median([abs(value - usual) for value in self._before])

    @property
    def is_best(self) -> bool:
        """Higher than any of before, be it little: a reward that was 0 until now."""
        return self.is_known and _median(self._newest) > max(self._before)

    def clear(self) -> None:
        """Also where the job goes back: what it reports again is the start."""
        self._before.clear()
        self._first.clear()
        self._newest.clear()

    def kept(self) -> KeptAroundOnset:
        return KeptAroundOnset(tuple(self._before), tuple(self._first), tuple(self._newest))

    def resume(self, kept: KeptAroundOnset) -> None:
        self._before = deque(kept.before, BEFORE_ROWS)
        self._first = list(kept.first)
        self._newest = deque(kept.newest, LEVEL_ROWS)


def _median(values: Sequence[float] | deque[float]) -> float:
    return median_of_sorted(sorted(values))
