"""Whether the reward of a run improves, or has fallen far below its best.

An improving reward prevents a divergence alert. Only rows that report a reward count. The level is
the running median of 3 rows, so that a single row decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from dfx_agent.judge.divergence.bands import median_of_sorted
from dfx_agent.judge.divergence.saved_state import SavedState

IMPROVING_Z = 2.0
IMPROVING_MEDIAN_Z = 1.0
IMPROVING_STEPS = 10
# while the alert fires, an improving reward ends it only after so many rows
PERSISTENT_STEPS = 8
FALLING_CHANGES = 3.0
DRAWDOWN_CHANGES = 6.0
DRAWDOWN_SHARE = 0.5
DRAWDOWN_STEPS = 3
# a best level of three rows can be luck, so a lasting fall is also measured on as many rows as it
# lasts
HELD_ROWS = 20
HELD_CHANGES = 3.0
# no update moves a reward this far in one row: the reward function or the data changed
JUMP_RANGES = 10.0
JUMP_ROWS = 2
JUMP_LASTS_ROWS = 16
_JUMP_WARM_ROWS = 12
# changes below a third of these floors of the reward's scale count as noise
_SCALE_FLOOR, _RELATIVE_FLOOR = 0.05, 0.1
_LEVEL_ROWS = 3
_START_ROWS = 5
_WINDOW_ROWS = 64
_LATEST_CHANGES = 8
# median of |N(0, 1)| / mean of it
_MEAN_TO_MEDIAN = 0.8454


@dataclass(frozen=True)
class SavedJump(SavedState):
    """Saved state of a ``Jump``; fields as there."""

    lowest: float = 0.0
    highest: float = 0.0
    num_rows: int = 0
    num_above: int = 0
    first_step: int | None = None
    num_rows_left: int = 0


class Jump:
    """Detects a reward that jumps far above all earlier rewards in one row, and stays there."""

    def __init__(self, saved: SavedJump = SavedJump()) -> None:
        self._state = saved

    def add(self, step: int, value: float) -> None:
        state = self._state
        span = max(state.highest - state.lowest, _SCALE_FLOOR)
        left = max(0, state.num_rows_left - 1)
        if state.num_rows >= _JUMP_WARM_ROWS and value > state.highest + JUMP_RANGES * span:
            num_above = state.num_above + 1
            first = step if num_above == 1 else state.first_step
            if num_above == JUMP_ROWS:  # the rewards after the jump have a range of their own
                left = JUMP_LASTS_ROWS
                self._state = SavedJump(value, value, 1, 0, first, left)
            else:
                self._state = replace(state, num_above=num_above, first_step=first)
            return
        is_first = state.num_rows == 0
        low = value if is_first else min(state.lowest, value)
        high = value if is_first else max(state.highest, value)
        self._state = SavedJump(low, high, state.num_rows + 1, 0, state.first_step, left)

    @property
    def step(self) -> int | None:
        """The first step of the latest jump; None from 16 rows after it on."""
        return self._state.first_step if self._state.num_rows_left else None

    def save(self) -> SavedJump:
        return self._state


@dataclass(frozen=True)
class SavedRewardTrend(SavedState):
    """Saved state of a ``RewardTrend``; fields as there."""

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
    """(step, reward) of the last 3 rows."""
    changes: tuple[float, ...]
    levels: tuple[tuple[int, float], ...]
    """(step, median of 3) of the last 64 rows."""
    starts: tuple[float, ...]
    best: float | None
    num_down: int
    fall_step: int | None
    held_values: tuple[float, ...] = ()
    """The last 20 rewards."""
    best_held: float | None = None
    jump: SavedJump = field(default_factory=SavedJump)


class LatestMedian:
    """The median of the latest 20 rewards, and the largest such median so far."""

    def __init__(self, values: Sequence[float] = (), best: float | None = None) -> None:
        self.values = deque(values, HELD_ROWS)
        self.best = best
        self._ordered = sorted(self.values)

    def add(self, value: float) -> None:
        values, ordered = self.values, self._ordered
        if len(values) == HELD_ROWS:
            del ordered[bisect_left(ordered, values[0])]
        values.append(value)
        insort(ordered, value)
        if len(ordered) == HELD_ROWS:
            level = median_of_sorted(ordered)
            if self.best is None or level > self.best:
                self.best = level

    @property
    def level(self) -> float:
        return median_of_sorted(self._ordered)


class RewardTrend:
    """Follows the level of the reward over the rows of one run."""

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
        self._held = LatestMedian()
        self._jump = Jump()
        self._change = 0.0  # typical change of the reward from row to row

    def observe(self, step: int, value: float | None, z: float | None, smallest: float) -> None:
        """Process one row; ``value`` is None if it reported no reward.

        ``z``: distance from the baseline without trend. ``smallest``: smallest difference between
        two values, 0 if unknown.
        """
        self._num_rows_left = max(0, self._num_rows_left - 1)
        if value is None:
            return
        if self._values:
            self._add_change(abs(value - self._values[-1][1]))
        if len(self._starts) < _START_ROWS:
            self._starts.append(value)
        self._values.append((step, value))
        self._held.add(value)
        self._jump.add(step, value)
        if len(self._values) == _LEVEL_ROWS:
            self._follow(step, _median([reward for _, reward in self._values]), smallest)
        if z is not None:
            self._mark(z)

    def is_improving(self, *, is_latched: bool) -> bool | None:
        """Whether the reward improves; None until a reward was scored.

        ``is_latched``: while the alert fires, the reward must have improved for 8 rows.
        """
        if not self._is_known:
            return None
        if is_latched:
            return self._num_marked >= PERSISTENT_STEPS
        return self._num_rows_left > 0

    @property
    def is_down(self) -> bool:
        """Whether the latest level is far below the best."""
        return self._num_down > 0

    @property
    def is_far_below_held(self) -> bool:
        """Whether the level of 20 rows is also far below the best level of 20 rows.

        True while no level of 20 rows is known.
        """
        best = self._held.best
        if best is None:
            return True
        lost, gained = best - self._held.level, best - _median(self._starts)
        return lost >= HELD_CHANGES * self._change and lost > DRAWDOWN_SHARE * gained

    @property
    def jump_step(self) -> int | None:
        """Step at which the reward jumped far above all earlier rewards, for 16 rows."""
        return self._jump.step

    @property
    def fell_step(self) -> int | None:
        """Step since which the reward has been below its best by more than noise."""
        return self._fall_step

    @property
    def fall_step(self) -> int | None:
        """As ``fell_step``, but None until the reward has been far below its best for 3 rows."""
        return self._fall_step if self._num_down >= DRAWDOWN_STEPS else None

    def clear(self) -> None:
        """Restart: the present reward is the start of the run."""
        was_known = self._is_known
        self.__init__()  # type: ignore[misc]
        self._is_known = was_known

    def rewind(self, step: int) -> None:
        """Drop ``step`` and later steps, because the job repeats them."""
        self._values = deque((row for row in self._values if row[0] < step), _LEVEL_ROWS)
        self._levels = deque((row for row in self._levels if row[0] < step), _WINDOW_ROWS)
        self._best = max((level for _, level in self._levels), default=None)
        self._num_down = 0
        self._fall_step = None
        self._held = LatestMedian([value for _, value in self._values])
        self._jump = Jump()

    def save(self) -> SavedRewardTrend:
        return SavedRewardTrend(
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
            held_values=tuple(self._held.values),
            best_held=self._held.best,
            jump=self._jump.save(),
        )

    def resume(self, saved: SavedRewardTrend) -> None:
        self._is_known = saved.is_known
        self._zs = deque(saved.zs, IMPROVING_STEPS)
        self._num_rows_left, self._num_marked = saved.num_rows_left, saved.num_marked
        self._values = deque(saved.values, _LEVEL_ROWS)
        self._changes = deque(saved.changes, _WINDOW_ROWS)
        self._ordered_changes = sorted(self._changes)
        self._levels = deque(saved.levels, _WINDOW_ROWS)
        self._starts = list(saved.starts)
        self._best = saved.best
        self._num_down, self._fall_step = saved.num_down, saved.fall_step
        self._held = LatestMedian(saved.held_values, saved.best_held)
        self._jump = Jump(saved.jump)

    def _add_change(self, change: float) -> None:
        changes, ordered = self._changes, self._ordered_changes
        if len(changes) == _WINDOW_ROWS:
            del ordered[bisect_left(ordered, changes[0])]
        changes.append(change)
        insort(ordered, change)

    def _follow(self, step: int, level: float, smallest: float) -> None:
        floor = max(_SCALE_FLOOR, _RELATIVE_FLOOR * abs(self._best or 0.0)) / 3
        change = self._change = max(_typical(self._ordered_changes), floor, smallest)
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
        """End "improving" if the reward is well below its recent level."""
        highest = max(value for _, value in list(self._levels)[-2 * IMPROVING_STEPS :])
        # the noise of a success rate grows with the rate, so 64 rows near 0 underestimate it
        recent_change = max(change, _typical(sorted(list(self._changes)[-_LATEST_CHANGES:])))
        if highest - level >= FALLING_CHANGES * recent_change:
            self._num_rows_left = self._num_marked = 0
            self._zs.clear()

    def _mark(self, z: float) -> None:
        self._is_known = True
        self._zs.append(z)
        self._num_marked = self._num_marked + 1 if self._is_high() else 0
        if self._num_marked:
            self._num_rows_left = IMPROVING_STEPS

    def _is_high(self) -> bool:
        """Whether z is high in the last 3 rows, or somewhat high in the last 10."""
        zs = list(self._zs)
        if len(zs) >= _LEVEL_ROWS and _median(zs[-_LEVEL_ROWS:]) > IMPROVING_Z:
            return True
        return len(zs) == IMPROVING_STEPS and _median(zs) > IMPROVING_MEDIAN_Z


def _typical(ordered: Sequence[float]) -> float:
    """The typical change of a reward from row to row; above 0 even if most changes are 0."""
    if not ordered:
        return 0.0
    most = ordered[:-1] or ordered
    return max(median_of_sorted(ordered), _MEAN_TO_MEDIAN * sum(most) / len(most))


def _median(values: Any) -> float:
    ordered = sorted(values)
    return median_of_sorted(ordered) if ordered else 0.0
