"""Where the reward of a run goes: improving (it vetoes votes), or fallen far below its best.

Counted in rows that reported a reward. The level is the running median of 3, so that one row, good
or bad, decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dfx_agent.judge.divergence.bands import median_of_sorted
from dfx_agent.judge.divergence.kept import Kept

IMPROVING_Z = 2.0
IMPROVING_MEDIAN_Z = 1.0
IMPROVING_STEPS = 10
# a page that is on ends by a better reward only when that lasts
PERSISTENT_STEPS = 8
FALLING_CHANGES = 3.0
DRAWDOWN_CHANGES = 6.0
DRAWDOWN_SHARE = 0.5
DRAWDOWN_STEPS = 3
# changes smaller than a third of what the reward's scale is floored with are not believed
_SCALE_FLOOR, _RELATIVE_FLOOR = 0.05, 0.1
_LEVEL_ROWS = 3
_START_ROWS = 5
_WINDOW_ROWS = 64
_NEWEST_CHANGES = 8
# median of |N(0, 1)| / mean of it
_MEAN_TO_MEDIAN = 0.8454


@dataclass(frozen=True)
class KeptRewardTrend(Kept):
    """``values`` and ``levels``: step and number."""

    EARLIER: ClassVar = {
        "known": "is_known",
        "left": "num_rows_left",
        "marked": "num_marked",
        "down": "num_down",
        "fall": "fall_step",
    }

    is_known: bool
    zs: tuple[float, ...]
    num_rows_left: int
    num_marked: int
    values: tuple[tuple[int, float], ...]
    changes: tuple[float, ...]
    levels: tuple[tuple[int, float], ...]
    starts: tuple[float, ...]
    best: float | None
    num_down: int
    fall_step: int | None


class RewardTrend:
    """``is_improving`` is None until a reward was scored."""

    def __init__(self) -> None:
        self._is_known = False
        self._zs: deque[float] = deque(maxlen=IMPROVING_STEPS)
        self._num_rows_left = self._num_marked = 0
        self._values: deque[tuple[int, float]] = deque(maxlen=_LEVEL_ROWS)
        self._changes: deque[float] = deque(maxlen=_WINDOW_ROWS)
        self._ordered_changes: list[float] = []
        self._levels: deque[tuple[int, float]] = deque(maxlen=_WINDOW_ROWS)
        self._starts: list[float] = []
        self._best: float | None = None
        self._num_down = 0
        self._fall_step: int | None = None

    def observe(self, step: int, value: float | None, z: float | None, smallest: float) -> None:
        """``z`` against the plain baseline; ``smallest`` step between values, 0 if not known."""
        self._num_rows_left = max(0, self._num_rows_left - 1)
        if value is None:
            return
        if self._values:
            self._add_change(abs(value - self._values[-1][1]))
        if len(self._starts) < _START_ROWS:
            self._starts.append(value)
        self._values.append((step, value))
        if len(self._values) == _LEVEL_ROWS:
            self._follow(step, _median([v for _, v in self._values]), smallest)
        if z is not None:
            self._mark(z)

    def is_improving(self, *, is_latched: bool) -> bool | None:
        """While a page is on, only what has lasted counts."""
        if not self._is_known:
            return None
        if is_latched:
            return self._num_marked >= PERSISTENT_STEPS
        return self._num_rows_left > 0

    @property
    def is_down(self) -> bool:
        """Whether the newest level is far below the best, for one row at least."""
        return self._num_down > 0

    @property
    def fell_step(self) -> int | None:
        """Since when it has been below its best by more than noise, be it little."""
        return self._fall_step

    @property
    def fall_step(self) -> int | None:
        """Since when the reward has been falling, once it is far below its best: a drawdown."""
        return self._fall_step if self._num_down >= DRAWDOWN_STEPS else None

    def clear(self) -> None:
        """What is now is the start."""
        was_known = self._is_known
        self.__init__()  # type: ignore[misc]
        self._is_known = was_known

    def rewind(self, step: int) -> None:
        """Forget ``step`` and what came after it."""
        self._values = deque((r for r in self._values if r[0] < step), _LEVEL_ROWS)
        self._levels = deque((r for r in self._levels if r[0] < step), _WINDOW_ROWS)
        self._best = max((level for _, level in self._levels), default=None)
        self._num_down = 0
        self._fall_step = None

    def kept(self) -> KeptRewardTrend:
        return KeptRewardTrend(
            is_known=self._is_known,
            zs=tuple(self._zs),
            num_rows_left=self._num_rows_left,
            num_marked=self._num_marked,
            values=tuple(self._values),
            changes=tuple(self._changes),
            levels=tuple(self._levels),
            starts=tuple(self._starts),
            best=self._best,
            num_down=self._num_down,
            fall_step=self._fall_step,
        )

    def resume(self, kept: KeptRewardTrend) -> None:
        self._is_known = kept.is_known
        self._zs = deque(kept.zs, IMPROVING_STEPS)
        self._num_rows_left, self._num_marked = kept.num_rows_left, kept.num_marked
        self._values = deque(kept.values, _LEVEL_ROWS)
        self._changes = deque(kept.changes, _WINDOW_ROWS)
        self._ordered_changes = sorted(self._changes)
        self._levels = deque(kept.levels, _WINDOW_ROWS)
        self._starts = list(kept.starts)
        self._best = kept.best
        self._num_down, self._fall_step = kept.num_down, kept.fall_step

    def _add_change(self, change: float) -> None:
        changes, ordered = self._changes, self._ordered_changes
        if len(changes) == _WINDOW_ROWS:
            del ordered[bisect_left(ordered, changes[0])]
        changes.append(change)
        insort(ordered, change)

    def _follow(self, step: int, level: float, smallest: float) -> None:
        floor = max(_SCALE_FLOOR, _RELATIVE_FLOOR * abs(self._best or 0.0)) / 3
        change = max(_typical(self._ordered_changes), floor, smallest)
        self._levels.append((step, level))
        self._best = level if self._best is None else max(self._best, level)
        lost = self._best - level
        if lost < FALLING_CHANGES * change:
            self._fall_step = None
            self._num_down = 0
            return
        if self._fall_step is None:
            self._fall_step = self._values[-2][0]  # the median follows one row late
        self._stop_improving(level, change)
        gained = self._best - _median(self._starts)
        is_down = lost >= DRAWDOWN_CHANGES * change and lost > DRAWDOWN_SHARE * gained
        is_started = len(self._starts) == _START_ROWS
        self._num_down = self._num_down + 1 if is_down and is_started else 0

    def _stop_improving(self, level: float, change: float) -> None:
        """Where the reward is well below what it was in the newest rows."""
        highest = max(value for _, value in list(self._levels)[-2 * IMPROVING_STEPS :])
        # the noise of a share grows with it: 64 rows of next to no success tell nothing of it
        newest = max(change, _typical(sorted(list(self._changes)[-_NEWEST_CHANGES:])))
        if highest - level >= FALLING_CHANGES * newest:
            self._num_rows_left = self._num_marked = 0
            self._zs.clear()

    def _mark(self, z: float) -> None:
        self._is_known = True
        self._zs.append(z)
        self._num_marked = self._num_marked + 1 if self._is_high() else 0
        if self._num_marked:
            self._num_rows_left = IMPROVING_STEPS

    def _is_high(self) -> bool:
        """High in the newest rows, or somewhat above the baseline in more of them."""
        newest = list(self._zs)
        if len(newest) >= _LEVEL_ROWS and _median(newest[-_LEVEL_ROWS:]) > IMPROVING_Z:
            return True
        return len(newest) == IMPROVING_STEPS and _median(newest) > IMPROVING_MEDIAN_Z


def _typical(ordered: Sequence[float]) -> float:
    """How far a reward moves from row to row; one that mostly stays the same moves as well."""
    if not ordered:
        return 0.0
    most = ordered[:-1] or ordered
    return max(median_of_sorted(ordered), _MEAN_TO_MEDIAN * sum(most) / len(most))


def _median(values: Any) -> float:
    ordered = sorted(values)
    return median_of_sorted(ordered) if ordered else 0.0
