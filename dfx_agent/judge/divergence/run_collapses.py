"""Detects collapses of a whole run: spikes, entropy fall, dead, not learning."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dfx_agent.judge.divergence.bands import Band, median_of_sorted
from dfx_agent.judge.divergence.collapse import (
    ALL_TRUNCATED,
    DEAD_STEPS,
    ENTROPY,
    ENTROPY_CRASH_FACTOR,
    ENTROPY_CRASH_STEPS,
    ENTROPY_CRASH_WITHIN_STEPS,
    ENTROPY_CRASH_Z,
    GRAD_NORM,
    LOG_SPIKE,
    NOT_LEARNING_STEPS,
    REWARD_FALL_STEPS,
    REWARD_FLOOR_MARGIN,
    SPIKE_WINDOW_STEPS,
    UNBELIEVABLE,
    SavedStreak,
    Streak,
    is_spike,
)
from dfx_agent.judge.divergence.saved_state import SavedState
from dfx_agent.judge.divergence.symptoms import SignalSpec

_LEVEL_STEPS = 3
_LOG_ENTROPY_CRASH = math.log(ENTROPY_CRASH_FACTOR)


class LowestReward:
    """The lowest reward of the run so far; None before the first one."""

    def __init__(self) -> None:
        self.lowest: float | None = None

    def is_at(self, reward: float) -> bool:
        """Update the lowest reward. Returns whether ``reward`` is within 1 % of it."""
        self.lowest = reward if self.lowest is None else min(self.lowest, reward)
        return reward <= self.lowest + REWARD_FLOOR_MARGIN * max(1.0, abs(self.lowest))


@dataclass(frozen=True)
class SavedSpikes(SavedState):
    """Saved state of a ``Spikes``."""

    num_reports: int = 0
    spikes: tuple[tuple[int, int], ...] = ()
    """(number of the report, step) of each spike."""


class Spikes:
    """Spikes among the last 64 reports of one signal."""

    def __init__(self) -> None:
        self._num_reports = 0
        self._spikes: deque[tuple[int, int]] = deque()  # number of the report, step

    def observe(self, step: int, *, holds: bool) -> None:
        self._num_reports += 1
        if holds:
            self._spikes.append((self._num_reports, step))
        while self._spikes and self._spikes[0][0] <= self._num_reports - SPIKE_WINDOW_STEPS:
            self._spikes.popleft()

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(step for _, step in self._spikes)

    def rewind(self, step: int) -> None:
        self._spikes = deque(spike for spike in self._spikes if spike[1] < step)

    def clear(self) -> None:
        self._spikes.clear()

    def save(self) -> SavedSpikes:
        return SavedSpikes(self._num_reports, tuple(self._spikes))

    def resume(self, saved: SavedSpikes) -> None:
        self._num_reports, self._spikes = saved.num_reports, deque(saved.spikes)


@dataclass(frozen=True)
class SavedEntropyFall(SavedState):
    """Saved state of an ``EntropyFall``: latest logarithms of the entropy, and medians of three."""

    streak: SavedStreak = field(default_factory=SavedStreak)
    scores: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()


class EntropyFall:
    """Detects an entropy that fell to a fifth within 20 steps and has stayed low.

    Medians of three rows are compared, so that a single row decides nothing. A good reward is no
    excuse: a policy that repeats itself can be rewarded for a while.
    """

    def __init__(self) -> None:
        self.streak = Streak(ENTROPY_CRASH_STEPS)
        self._scores: deque[float] = deque(maxlen=_LEVEL_STEPS)
        self._levels: deque[float] = deque(maxlen=ENTROPY_CRASH_WITHIN_STEPS)

    def observe(self, step: int, score: float, band: Band) -> None:
        self._scores.append(score)
        if len(self._scores) < _LEVEL_STEPS:
            return
        level = median_of_sorted(sorted(self._scores))
        self._levels.append(level)
        is_low = band.median - level >= ENTROPY_CRASH_Z * band.size_scale
        holds = is_low and (
            self.streak.num_steps > 0 or max(self._levels) - level >= _LOG_ENTROPY_CRASH
        )
        self.streak.observe(step, holds=holds)

    def rewind(self, step: int) -> None:
        self.streak.rewind(step)
        self._scores.clear()
        self._levels.clear()

    def clear(self) -> None:
        self.streak.clear()
        self._scores.clear()
        self._levels.clear()

    def save(self) -> SavedEntropyFall:
        return SavedEntropyFall(self.streak.save(), tuple(self._scores), tuple(self._levels))

    def resume(self, saved: SavedEntropyFall) -> None:
        self.streak.resume(saved.streak)
        self._scores = deque(saved.scores, _LEVEL_STEPS)
        self._levels = deque(saved.levels, ENTROPY_CRASH_WITHIN_STEPS)


@dataclass(frozen=True)
class SavedStillness(SavedState):
    """Saved state of a ``Stillness``; ``reward`` is the latest one."""

    streak: SavedStreak = field(default_factory=SavedStreak)
    reward: float | None = None


class Stillness:
    """Detects a run that learns nothing: no gradient, and the reward stays at its lowest.

    A loss and a reference KL of exactly 0 also mean that there is no gradient. This covers runs
    that report no norm, or a norm of 1e-12 by rounding.
    """

    def __init__(self) -> None:
        self.streak = Streak(NOT_LEARNING_STEPS)
        self._reward: float | None = None

    def observe(self, step: int, values: Mapping[str, float], *, is_lowest: bool) -> None:
        """Process a row that reports a reward."""
        is_still = _is_still(values)
        if is_still is None:
            return
        reward = values["reward"]
        is_same = self._reward is None or reward == self._reward
        self._reward = reward
        self.streak.observe(step, holds=is_still and is_same and is_lowest)

    def save(self) -> SavedStillness:
        return SavedStillness(self.streak.save(), self._reward)

    def resume(self, saved: SavedStillness) -> None:
        self.streak.resume(saved.streak)
        self._reward = saved.reward


def _is_still(values: Mapping[str, float]) -> bool | None:
    """Whether the gradient of a row is zero; None if the row reports too little."""
    norm, loss, ref_kl = values.get(GRAD_NORM), values.get("loss"), values.get("ref_kl")
    if norm == 0:
        return True
    if loss is None or ref_kl is None:
        return None if norm is None else False
    return loss == 0 and ref_kl == 0


@dataclass(frozen=True)
class SavedCollapses(SavedState):
    """Saved state of a ``RunCollapses``; ``spikes`` by signal."""

    fall: SavedEntropyFall = field(default_factory=SavedEntropyFall)
    still: SavedStillness = field(default_factory=SavedStillness)
    reward_fall: SavedStreak = field(default_factory=SavedStreak)
    spikes: dict[str, SavedSpikes] = field(default_factory=dict)


class RunCollapses:
    """The collapses of one run that need more than one signal or more than one step."""

    def __init__(self) -> None:
        self.dead = Streak(DEAD_STEPS)
        self.still = Stillness()
        self.fall = EntropyFall()
        self.reward_fall = Streak(REWARD_FALL_STEPS)
        self.spikes: dict[str, Spikes] = {}
        self.lowest = LowestReward()

    def observe_signal(self, spec: SignalSpec, step: int, score: float, band: Band) -> None:
        """Process a scored row of one signal: entropy fall and spikes."""
        if spec.name == ENTROPY:
            self.fall.observe(step, score, band)
        holds = score - band.median >= LOG_SPIKE and is_spike(spec, band, score)
        if holds or spec.name in self.spikes:
            self.spikes.setdefault(spec.name, Spikes()).observe(step, holds=holds)

    def observe(self, step: int, values: Mapping[str, float]) -> None:
        """Process one row of the run: not learning, dead. A NaN counts as "no"."""
        reward, truncation = values.get("reward"), values.get("truncation")
        if reward is None or not abs(reward) < UNBELIEVABLE:
            return
        is_lowest = self.lowest.is_at(reward)
        self.still.observe(step, values, is_lowest=is_lowest)
        if truncation is not None:
            self.dead.observe(step, holds=is_lowest and truncation > ALL_TRUNCATED)

    @property
    def is_any(self) -> bool:
        """Whether any collapse is active."""
        return bool(
            self.dead.num_steps
            or self.still.streak.num_steps
            or self.fall.streak.num_steps
            or self.reward_fall.num_steps
            or (self.spikes and any(spikes.steps for spikes in self.spikes.values()))
        )

    @property
    def streaks(self) -> tuple[Streak, ...]:
        return self.dead, self.still.streak, self.fall.streak, self.reward_fall

    def rewind(self, step: int) -> None:
        self.dead.rewind(step)
        self.still.streak.rewind(step)
        self.fall.rewind(step)
        self.reward_fall.rewind(step)
        for spikes in self.spikes.values():
            spikes.rewind(step)

    def relearn(self) -> None:
        """Make the present state normal; "dead" and "not learning" stay as they are."""
        self.fall.clear()
        self.reward_fall.clear()
        for spikes in self.spikes.values():
            spikes.clear()

    def clear(self) -> None:
        self.relearn()
        self.dead.clear()
        self.still.streak.clear()

    def save(self) -> SavedCollapses:
        """Saved state without ``lowest`` and ``dead``, which the bank saves under its own names."""
        saved_spikes = {name: spikes.save() for name, spikes in self.spikes.items()}
        return SavedCollapses(
            self.fall.save(), self.still.save(), self.reward_fall.save(), saved_spikes
        )

    def resume(self, saved: SavedCollapses) -> None:
        self.fall.resume(saved.fall)
        self.still.resume(saved.still)
        self.reward_fall.resume(saved.reward_fall)
        for name, saved_spikes in saved.spikes.items():
            self.spikes.setdefault(name, Spikes()).resume(saved_spikes)
