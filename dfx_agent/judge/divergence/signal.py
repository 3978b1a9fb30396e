"""One training signal of one run: robust z against its baseline, CUSUM, drift."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from dfx_agent.judge.divergence.anchor import Anchor, KeptAnchor
from dfx_agent.judge.divergence.bands import Band
from dfx_agent.judge.divergence.baseline import Baseline, Drift, KeptBaseline, KeptDrift
from dfx_agent.judge.divergence.collapse import (
    BLOW_UP_STEPS,
    ENTROPY,
    JUMP_STEPS,
    LOG_FAR,
    REWARD,
    KeptStreak,
    Streak,
    is_blown_up,
    is_cut_off,
)
from dfx_agent.judge.divergence.kept import FORMAT_2, Kept
from dfx_agent.judge.divergence.run_collapses import RunCollapses
from dfx_agent.judge.divergence.symptoms import Direction, SignalSpec
from dfx_agent.snapshot import SignalRow

CUSUM_Z_CAP = 6.0
CUSUM_SLACK = 1.0
CUSUM_ALARM = 8.0
LOSS, TRUNCATION = "loss", "truncation"
# how far back the onset of a divergence is looked for
HISTORY_ROWS = 128


@dataclass(frozen=True)
class KeptCusum(Kept):
    """The sum and since when it rises; that of the newest rise, and since when."""

    sum: float
    rise_step: int | None
    run_sum: float = 0.0
    run_step: int | None = None


class Cusum:
    """Page's cumulative sum in one direction.

    A change begins where the sum last was 0; but where the steps that just came in a row above the
    slack made half of an alarm, it begins with them: before, the signal had only drifted a little.
    """

    __slots__ = ("_rise_step", "_run_step", "_run_sum", "sum")

    def __init__(self) -> None:
        self.sum = 0.0
        self._rise_step: int | None = None
        self._run_sum = 0.0
        self._run_step: int | None = None

    def add(self, step: int, z: float) -> int | None:
        """The step at which the change began, when this step raises the alarm."""
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

    def kept(self) -> KeptCusum:
        return KeptCusum(self.sum, self._rise_step, self._run_sum, self._run_step)

    def resume(self, kept: KeptCusum) -> None:
        self.sum, self._rise_step = kept.sum, kept.rise_step
        self._run_sum, self._run_step = kept.run_sum, kept.run_step


@dataclass(frozen=True)
class KeptNewest(Kept):
    """What the newest row reported."""

    value: float | None = None
    z: float | None = None
    is_broken: bool = False


@dataclass(frozen=True)
class KeptSignal(Kept):
    """Of a signal that was reported at least once; only a loss has an anchor."""

    baseline: KeptBaseline
    drift: Annotated[KeptDrift, FORMAT_2]
    streak: Annotated[KeptStreak, FORMAT_2]
    cusums: dict[Direction, Annotated[KeptCusum, FORMAT_2]]
    newest: Annotated[KeptNewest, FORMAT_2] = field(default_factory=KeptNewest)
    anchor: Annotated[KeptAnchor, FORMAT_2] = field(default_factory=KeptAnchor)
    first_value: float | None = None
    has_varied: bool = True
    history: tuple[tuple[int, float], ...] = ()


class Signal:
    """One signal of one run."""

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
        # truncation: most responses cut; every other signal: a blow-up
        self.streak = Streak(JUMP_STEPS if spec.name == TRUNCATION else BLOW_UP_STEPS)
        self._anchor = Anchor(spec.least or 0.0) if spec.name == LOSS else None
        # who knows why a far value may be harmless: asked at each row that is scored
        self.is_explained: Callable[[bool], bool] | None = None
        self.collapses = RunCollapses()  # those of the run
        self.has_varied = False
        self.history: deque[tuple[int, float]] = deque(maxlen=HISTORY_ROWS)  # step and z
        self._first_value: float | None = None
        self._band: Band | None = None

    def observe(
        self, step: int, value: float | None, *, is_broken: bool = False
    ) -> dict[Direction, int]:
        """Alarms of this step: direction -> step at which the change began.

        ``is_broken``: NaN or infinity was reported, which is not scored.
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
        # what may be a collapse by its size must not widen the band it is measured with
        self.baseline.admit(step, score, is_learned=self.streak.num_steps == 0)
        self.drift.add(step, self.spec.value(score))
        if band is None:
            return {}
        z = self.z = band.z(score)
        self.history.append((step, z))
        is_near = -CUSUM_SLACK <= z <= CUSUM_SLACK
        if is_near and not self._up.sum and not self._down.sum:
            return {}  # a sum of 0 stays so
        return self._alarms(step, z)

    @property
    def is_ready(self) -> bool:
        """Whether it can be judged: 12 rows, not all of them the same."""
        return self.baseline.is_ready and self.has_varied

    @property
    def plain_z(self) -> float | None:
        """As if there was no trend."""
        if self.z is None or self.value is None or self._band is None:
            return None
        score = self.spec.score(self.value)
        return None if score is None else (score - self._band.median) / self._band.scale

    def distance(self, sign: float) -> float:
        """How far the newest row is off in one direction (1 up, -1 down).

        A reward that is not lower than usual has not fallen, however far it lies below its trend.
        """
        if not self._is_reward:
            return sign * (self.z or 0.0)
        plain_z = self.plain_z
        is_back = plain_z is not None and sign * plain_z <= 0
        return sign * ((plain_z if is_back else self.z) or 0.0)

    @property
    def recent_median(self) -> float | None:
        """Of the newest 8 values; None where there are fewer."""
        return self.drift.recent_median

    @property
    def drift_ratio(self) -> float | None:
        """That against the start of the run; None of a raw signal."""
        start = None if self.spec.is_raw else self.drift.start_median
        recent = None if start is None else self.drift.recent_median
        return None if recent is None or start is None else recent / start

    @property
    def drift_difference(self) -> float | None:
        """The same of a raw signal, where a ratio would say nothing."""
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

    def kept(self) -> KeptSignal:
        return KeptSignal(
            self.baseline.kept(),
            self.drift.kept(),
            self.streak.kept(),
            {direction: cusum.kept() for direction, cusum in self.cusums.items()},
            KeptNewest(self.value, self.z, self.is_broken),
            KeptAnchor() if self._anchor is None else self._anchor.kept(),
            self._first_value,
            self.has_varied,
            tuple(self.history),
        )

    def resume(self, kept: KeptSignal) -> None:
        self.is_known = True
        self.baseline.resume(kept.baseline)
        self._band = self.baseline.band()
        self.drift.resume(kept.drift)
        self.streak.resume(kept.streak)
        for direction, cusum in self.cusums.items():
            cusum.resume(kept.cusums[direction])
        if self._anchor is not None:
            self._anchor.resume(kept.anchor)
        self._first_value, self.has_varied = kept.first_value, kept.has_varied
        self.history = deque(kept.history, HISTORY_ROWS)
        newest = kept.newest
        self.value, self.z, self.is_broken = newest.value, newest.z, newest.is_broken

    def _watch_size(self, step: int, score: float, band: Band) -> None:
        if self.spec.name == TRUNCATION:
            self.streak.observe(step, holds=is_cut_off(band, score))
        else:
            is_left = self._anchor is not None and self._anchor.is_left
            is_near = abs(score - band.median) < LOG_FAR  # as nearly all rows
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
