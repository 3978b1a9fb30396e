"""The baseline of one signal: its recent completed steps, their trend, and the start of the run.

A score is the logarithm of a positive signal, and the value itself of any other signal.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from dfx_agent.judge.divergence.bands import (
    MAD_TO_SIGMA,
    TREND_SHARE,
    Band,
    mean_deviation,
    median_distance,
    median_of_sorted,
    trend_of,
)
from dfx_agent.judge.divergence.saved_state import SavedState
from dfx_agent.judge.divergence.symptoms import SignalSpec
from dfx_agent.judge.divergence.value_steps import ValueSteps

WINDOW_STEPS = 64
# the last rows are not used yet: a change must not be compared with itself
GAP_STEPS = 2
MIN_STEPS = 3
WARM_STEPS = 12
COLD_LOG_SCALE = 0.5
COLD_RAW_FACTOR = 3.0
# a deviation estimated from n rows is widened by 1 + 5 / (n - 1). This is the 99.9 % point of
# Student's t relative to the normal distribution, within 10 % from 6 rows on
FEW_ROWS_FACTOR = 5.0

# indices of the values that represent the start of the run
_START_FROM, _START_TO = 4, 20
RECENT_STEPS = 8


@dataclass(frozen=True)
class SavedBaseline(SavedState):
    """Saved state of a ``Baseline``."""

    rows: tuple[tuple[int, float], ...]
    """(step, score), oldest first."""
    is_frozen: bool
    values: tuple[float, ...]
    """Distinct values of a raw signal."""


@dataclass(frozen=True)
class SavedDrift(SavedState):
    """Saved state of a ``Drift``."""

    EARLIER: ClassVar = {"num": "num_values"}

    num_values: int
    start: tuple[tuple[int, float], ...]
    """(step, value) near the start of the run."""
    recent: tuple[float, ...]


class Baseline:
    """Stores the last ``WINDOW_STEPS + GAP_STEPS`` scored steps. A frozen baseline adds no rows."""

    def __init__(self, spec: SignalSpec) -> None:
        self.is_ready = False  # whether the last band was made of at least 12 rows
        self._spec = spec
        self._steps = ValueSteps()
        self._rows: deque[tuple[int, float]] = deque(maxlen=WINDOW_STEPS + GAP_STEPS)
        self._is_frozen = False
        # sorted scores of the rows in use; None if they must be sorted again
        self._ordered: list[float] | None = None
        self._begin = 0  # index of the nearer half, see median_distance

    def admit(self, step: int, score: float, *, is_learned: bool = True) -> None:
        if self._spec.is_raw:
            self._steps.add(score)
        if not is_learned or self._is_frozen:
            return
        rows, ordered = self._rows, self._ordered
        if ordered is not None and len(rows) >= GAP_STEPS:
            insort(ordered, rows[-GAP_STEPS][1])
            if len(rows) == rows.maxlen:
                del ordered[bisect_left(ordered, rows[0][1])]
        rows.append((step, score))

    @property
    def smallest_step(self) -> float:
        """Smallest difference between two values of a raw signal; 0 if unknown."""
        return self._steps.smallest

    @property
    def num_rows(self) -> int:
        """Rows in use, and the last two, which are not used yet."""
        return len(self._rows)

    def freeze(self) -> None:
        """Stop learning.

        The last rows, not in use yet, belong to the present event and are dropped.
        """
        if self._is_frozen:
            return
        for _ in range(min(GAP_STEPS, len(self._rows))):
            self._rows.pop()
        self._is_frozen = True
        self._ordered = None

    def thaw(self) -> None:
        if self._is_frozen:
            self._ordered = None
        self._is_frozen = False

    def rewind(self, step: int) -> None:
        """Drop ``step`` and later steps, because the job will repeat them."""
        while self._rows and self._rows[-1][0] >= step:
            self._rows.pop()
        self._ordered = None

    def clear(self) -> None:
        self._rows.clear()
        self._ordered = None
        self._is_frozen = self.is_ready = False

    def band(self) -> Band | None:
        """The expected range of the next score.

        None until 3 rows are in use (12 for a signal that starts at zero).
        """
        ordered, spec = self._ordered, self._spec
        if ordered is None:
            ordered = self._ordered = sorted(self._scores_in_use())
        num = len(ordered)
        is_ready = self.is_ready = num >= WARM_STEPS
        if num < MIN_STEPS or (spec.starts_at_zero and not is_ready):
            return None
        middle = median_of_sorted(ordered)
        self._begin, distance = median_distance(ordered, middle, self._begin)
        spread, floor = MAD_TO_SIGMA * distance, spec.scale_floor
        if spec.is_raw:
            # outliers are part of a reward; if most values are equal, the median distance is 0
            spread = max(spread, mean_deviation(ordered))
        if spec.is_raw or not is_ready:
            floor = self._floor(middle, num)
        scale = max(spread * (1 + FEW_ROWS_FACTOR / (num - 1)), floor)
        has_spread = is_ready and spread >= TREND_SHARE * floor
        trend = trend_of(self._scores_in_use(), spread, floor) if has_spread else None
        return Band(middle, scale, trend, max(spread, floor))

    def save(self) -> SavedBaseline:
        return SavedBaseline(tuple(self._rows), self._is_frozen, self._steps.save())

    def resume(self, saved: SavedBaseline) -> None:
        self._rows = deque(saved.rows, self._rows.maxlen)
        self._is_frozen = saved.is_frozen
        self._steps.resume(saved.values)
        self._ordered = None

    def _scores_in_use(self) -> list[float]:
        """Scores of the rows in use, oldest first."""
        scores = [score for _, score in self._rows]
        return scores if self._is_frozen else scores[:-GAP_STEPS]

    def _floor(self, median: float, num_rows: int) -> float:
        """The smallest scale that is accepted. It is wider while there are fewer than 12 rows."""
        if not self._spec.is_raw:
            floor, cold = self._spec.scale_floor, COLD_LOG_SCALE
        else:
            # a tenth of the median is relative already, so few rows do not widen it
            least = max(0.1 * abs(median), self._steps.noise_at(median))
            floor = max(self._spec.scale_floor, least)
            cold = max(COLD_RAW_FACTOR * self._spec.scale_floor, least)
        if num_rows >= WARM_STEPS:
            return floor
        share = (num_rows - MIN_STEPS) / (WARM_STEPS - MIN_STEPS)
        return cold + share * (floor - cold)


class Drift:
    """Compares the last 8 values with values near the start of the run (or of the attachment)."""

    def __init__(self) -> None:
        self._num_values = 0
        self._start: list[tuple[int, float]] = []
        self._start_median: float | None = None
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._recent_median: float | None = None

    def add(self, step: int, value: float) -> None:
        if _START_FROM <= self._num_values <= _START_TO:
            self._start.append((step, value))
        self._num_values += 1
        self._recent.append(value)
        self._recent_median = None

    def rewind(self, step: int) -> None:
        """Drop the recent values, and values of the start that the job will report again."""
        remaining = [row for row in self._start if row[0] < step]
        if len(remaining) < len(self._start):
            self._num_values = _START_FROM + len(remaining)
            self._start_median = None
        self._start = remaining
        self._recent.clear()

    def clear(self) -> None:
        self._num_values = 0
        self._start_median = None
        self._start.clear()
        self._recent.clear()

    @property
    def recent_median(self) -> float | None:
        if len(self._recent) < RECENT_STEPS:
            return None
        if self._recent_median is None:
            self._recent_median = median_of_sorted(sorted(self._recent))
        return self._recent_median

    @property
    def start_median(self) -> float | None:
        """None until the start is complete and the last 8 values do not overlap it."""
        if self._num_values <= _START_TO + RECENT_STEPS:
            return None
        if self._start_median is None:
            self._start_median = median_of_sorted(sorted(value for _, value in self._start))
        return self._start_median

    def save(self) -> SavedDrift:
        return SavedDrift(self._num_values, tuple(self._start), tuple(self._recent))

    def resume(self, saved: SavedDrift) -> None:
        self._num_values = saved.num_values
        self._start = list(saved.start)
        self._recent = deque(saved.recent, RECENT_STEPS)
        self._start_median = self._recent_median = None
