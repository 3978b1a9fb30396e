"""One training signal of one run: its distance from the baseline, CUSUM alarms, and drift."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from dfx_agent.judge.divergence.anchor import Anchor, SavedAnchor
from dfx_agent.judge.divergence.bands import Band
from dfx_agent.judge.divergence.baseline import Baseline, Drift, SavedBaseline, SavedDrift
from dfx_agent.judge.divergence.collapse import (
    BLOW_UP_STEPS,
    ENTROPY,
    JUMP_STEPS,
    LOG_FAR,
    REWARD,
    SavedStreak,
    Streak,
    is_blown_up,
    is_cut_off,
)
from dfx_agent.judge.divergence.run_collapses import RunCollapses
from dfx_agent.judge.divergence.saved_state import FORMAT_2, SavedState
from dfx_agent.judge.divergence.symptoms import Direction, SignalSpec
from dfx_agent.snapshot import SignalRow

CUSUM_Z_CAP = 6.0
CUSUM_SLACK = 1.0
CUSUM_ALARM = 8.0
LOSS, TRUNCATION = "loss", "truncation"
# rows in which the onset of a divergence is searched
HISTORY_ROWS = 128


@dataclass(frozen=True)
class SavedCusum(SavedState):
    """Saved state of a ``Cusum``."""

    sum: float
    rise_step: int | None
    """Step since which the sum has been above 0."""
    run_sum: float = 0.0
    """Sum of the latest steps in a row that were above the slack."""
    run_step: int | None = None
    """The first of these steps."""


class Cusum:
    """Page's cumulative sum (CUSUM) in one direction.

    A change begins at the step after the sum was last 0. If the latest steps in a row above the
    slack made at least half of the sum, it begins with these steps: before, the signal drifted.
    """

    __slots__ = ("_rise_step", "_run_step", "_run_sum", "sum")

    def __init__(self) -> None:
        self.sum = 0.0
        self._rise_step: int | None = None
        self._run_sum = 0.0
        self._run_step: int | None = None

    def add(self, step: int, z: float) -> int | None:
        """Add one step. Returns the step at which the change began if this step raises an alarm."""
        more = min(z, CUSUM_Z_CAP) - CUSUM_SLACK
        self.sum = max(0.0, self.sum + more)
        if self.sum == 0:
            self._rise_step = None
        elif self._rise_step is None:
            self._rise_step = step
        if more <= 0:
            self._run_sum, self._run_step = 0.0, None
        else:
            self._run_sum += more
            self._run_step = step if self._run_step is None else self._run_step
        if self.sum <= CUSUM_ALARM:
            return None
        is_sudden = self._run_sum >= CUSUM_ALARM / 2
        onset = self._run_step if is_sudden else self._rise_step
        self.clear()
        return step if onset is None else onset

    def clear(self) -> None:
        self.sum = self._run_sum = 0.0
        self._rise_step = self._run_step = None

    def save(self) -> SavedCusum:
        return SavedCusum(self.sum, self._rise_step, self._run_sum, self._run_step)

    def resume(self, saved: SavedCusum) -> None:
        self.sum, self._rise_step = saved.sum, saved.rise_step
        self._run_sum, self._run_step = saved.run_sum, saved.run_step


@dataclass(frozen=True)
class SavedRow(SavedState):
    """The latest row of a signal."""

    value: float | None = None
    z: float | None = None
    is_broken: bool = False


@dataclass(frozen=True)
class SavedSignal(SavedState):
    """Saved state of a ``Signal`` that was reported at least once."""

    EARLIER: ClassVar = {"newest": "latest_row"}

    baseline: SavedBaseline
    drift: Annotated[SavedDrift, FORMAT_2]
    streak: Annotated[SavedStreak, FORMAT_2]
    cusums: dict[Direction, Annotated[SavedCusum, FORMAT_2]]
    latest_row: Annotated[SavedRow, FORMAT_2] = field(default_factory=SavedRow)
    anchor: Annotated[SavedAnchor, FORMAT_2] = field(default_factory=SavedAnchor)
    """Empty unless the signal is a loss."""
    first_value: float | None = None
    has_varied: bool = True
    history: tuple[tuple[int, float], ...] = ()
    """(step, z) of the last 128 scored rows."""


class Signal:
    """One signal of one run, for example its KL or its reward."""

    def __init__(self, spec: SignalSpec) -> None:
        self.spec, self.signal = spec, spec.name
        self._is_reward, self._is_entropy = spec.name == REWARD, spec.name == ENTROPY
        self.is_known = False
        self.value: float | None = None
        self.z: float | None = None
        self.is_broken = False
        self.baseline = Baseline(spec)
        self.drift = Drift()
        self._up, self._down = Cusum(), Cusum()
        self.cusums: dict[Direction, Cusum] = {"up": self._up, "down": self._down}
        # rows of a truncation, or of a blow-up of any other signal
        self.streak = Streak(JUMP_STEPS if spec.name == TRUNCATION else BLOW_UP_STEPS)
        self._anchor = Anchor(spec.least or 0.0) if spec.name == LOSS else None
        # whether another signal explains a value; called for each scored row
        self.is_explained: Callable[[bool], bool] | None = None
        self.collapses = RunCollapses()  # those of the run
        self.has_varied = False
        self.history: deque[tuple[int, float]] = deque(maxlen=HISTORY_ROWS)  # step and z
        self._first_value: float | None = None
        self._band: Band | None = None

    def observe(
        self, step: int, value: float | None, *, is_broken: bool = False
    ) -> dict[Direction, int]:
        """Process one row. Returns its alarms: direction -> step at which the change began.

        ``is_broken``: the row reported NaN or infinity, which is not scored.
        """
        self.value, self.z, self.is_broken = value, None, is_broken
        score = None if value is None else self.spec.score(value)
        if value is None or score is None:
            return {}
        self.is_known = True
        if self._first_value is None:
            self._first_value = value
        self.has_varied = self.has_varied or value != self._first_value
        band = self._band = self.baseline.band()
        if self._anchor is not None:
            self._anchor.observe(value)
        if band is not None:
            self._watch_size(step, score, band)
        # a possible collapse must not widen the band that it is compared with
        self.baseline.admit(step, score, is_learned=self.streak.num_steps == 0)
        self.drift.add(step, self.spec.value(score))
        if band is None:
            return {}
        z = self.z = band.z(score)
        self.history.append((step, z))
        is_near = -CUSUM_SLACK <= z <= CUSUM_SLACK
        if is_near and not self._up.sum and not self._down.sum:
            return {}  # both sums stay 0
        return self._alarms(step, z)

    @property
    def is_ready(self) -> bool:
        """Whether the signal can be judged: it has 12 rows that are not all equal."""
        return self.baseline.is_ready and self.has_varied

    @property
    def plain_z(self) -> float | None:
        """Distance from the baseline without its trend."""
        if self.z is None or self.value is None or self._band is None:
            return None
        score = self.spec.score(self.value)
        return None if score is None else (score - self._band.median) / self._band.scale

    def distance(self, sign: float) -> float:
        """How far the latest row is off in one direction (1 up, -1 down).

        A reward below its trend has not fallen if it is not below its median.
        """
        if not self._is_reward:
            return sign * (self.z or 0.0)
        plain_z = self.plain_z
        is_back = plain_z is not None and sign * plain_z <= 0
        return sign * ((plain_z if is_back else self.z) or 0.0)

    @property
    def recent_median(self) -> float | None:
        """Median of the last 8 values; None if there are fewer."""
        return self.drift.recent_median

    @property
    def drift_ratio(self) -> float | None:
        """Recent median / median at the start of the run; None for a raw signal."""
        start = None if self.spec.is_raw else self.drift.start_median
        recent = None if start is None else self.drift.recent_median
        return None if recent is None or start is None else recent / start

    @property
    def drift_difference(self) -> float | None:
        """Recent median - median at the start of the run, for a raw signal; else None."""
        start = self.drift.start_median if self.spec.is_raw else None
        recent = None if start is None else self.drift.recent_median
        return None if recent is None or start is None else recent - start

    def rewind(self, step: int) -> None:
        self.baseline.rewind(step)
        self.drift.rewind(step)
        self.streak.rewind(step)
        while self.history and self.history[-1][0] >= step:
            self.history.pop()
        for cusum in self.cusums.values():
            cusum.clear()

    def clear(self) -> None:
        self.baseline.clear()
        if self._anchor is not None:
            self._anchor.clear()
        self.streak.clear()
        self.history.clear()
        for cusum in self.cusums.values():
            cusum.clear()

    def as_row(self) -> SignalRow:
        low, high = self._ends()
        return SignalRow(
            signal=self.spec.name,
            symptom=self.spec.symptom,
            value=self.value,
            z=self.z,
            cusum_up=self.cusums["up"].sum,
            cusum_down=self.cusums["down"].sum,
            baseline_low=low,
            baseline_high=high,
            is_baseline_ready=self.is_ready,
            is_broken=self.is_broken,
            recent_median=self.recent_median,
            drift_ratio=self.drift_ratio,
            drift_difference=self.drift_difference,
            usual_value=None if self._band is None else self.spec.value(self._band.median),
            has_varied=self.has_varied,
        )

    def save(self) -> SavedSignal:
        return SavedSignal(
            self.baseline.save(),
            self.drift.save(),
            self.streak.save(),
            {direction: cusum.save() for direction, cusum in self.cusums.items()},
            SavedRow(self.value, self.z, self.is_broken),
            SavedAnchor() if self._anchor is None else self._anchor.save(),
            self._first_value,
            self.has_varied,
            tuple(self.history),
        )

    def resume(self, saved: SavedSignal) -> None:
        self.is_known = True
        self.baseline.resume(saved.baseline)
        self._band = self.baseline.band()
        self.drift.resume(saved.drift)
        self.streak.resume(saved.streak)
        for direction, cusum in self.cusums.items():
            cusum.resume(saved.cusums[direction])
        if self._anchor is not None:
            self._anchor.resume(saved.anchor)
        self._first_value, self.has_varied = saved.first_value, saved.has_varied
        self.history = deque(saved.history, HISTORY_ROWS)
        row = saved.latest_row
        self.value, self.z, self.is_broken = row.value, row.z, row.is_broken

    def _watch_size(self, step: int, score: float, band: Band) -> None:
        if self.spec.name == TRUNCATION:
            self.streak.observe(step, holds=is_cut_off(band, score))
        else:
            is_left = self._anchor is not None and self._anchor.is_left
            is_near = abs(score - band.median) < LOG_FAR  # true for nearly all rows
            is_far = is_left or (not is_near and is_blown_up(self.spec, band, score))
            is_explained = self.is_explained is not None and self.is_explained(is_far)
            if is_far or self.streak.num_steps:
                self.streak.observe(step, holds=is_far and not is_explained)
            if not is_near or self._is_entropy or self.collapses.spikes:
                self.collapses.observe_signal(self.spec, step, score, band)

    def _alarms(self, step: int, z: float) -> dict[Direction, int]:
        alarms: dict[Direction, int] = {}
        if z > CUSUM_SLACK or self._up.sum:
            self._note(alarms, "up", self._up.add(step, z))
        if -z > CUSUM_SLACK or self._down.sum:
            self._note(alarms, "down", self._down.add(step, -z))
        return alarms

    def _note(self, alarms: dict[Direction, int], direction: Direction, onset: int | None) -> None:
        if onset is not None and direction in self.spec.directions:
            alarms[direction] = onset

    def _ends(self) -> tuple[float | None, float | None]:
        if self._band is None:
            return None, None
        ends = [self.spec.value(score) for score in self._band.ends(2)]
        low, high = (end if math.isfinite(end) else None for end in ends)
        return low, high
