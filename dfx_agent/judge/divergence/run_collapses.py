"""States of a whole run that need no vote: spikes, a fallen entropy, dead, nothing is learned."""

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
    KeptStreak,
    Streak,
    is_spike,
)
from dfx_agent.judge.divergence.kept import Kept
from dfx_agent.judge.divergence.symptoms import SignalSpec

_LEVEL_STEPS = 3
_LOG_ENTROPY_CRASH = math.log(ENTROPY_CRASH_FACTOR)


class LowestReward:
    """Whether the reward is where it was lowest; None until one was reported."""

    def __init__(self) -> None:
        self.lowest: float | None = None

    def is_at(self, reward: float) -> bool:
        self.lowest = reward if self.lowest is None else min(self.lowest, reward)
        return reward <= self.lowest + REWARD_FLOOR_MARGIN * max(1.0, abs(self.lowest))


@dataclass(frozen=True)
class KeptSpikes(Kept):
    """Since which report the newest spikes are counted, and the steps of the spikes."""

    num_reports: int = 0
    spikes: tuple[tuple[int, int], ...] = ()


class Spikes:
    """Steps among the newest 64 reports of one signal that were far beyond its baseline."""

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
        self._spikes = deque(each for each in self._spikes if each[1] < step)

    def clear(self) -> None:
        self._spikes.clear()

    def kept(self) -> KeptSpikes:
        return KeptSpikes(self._num_reports, tuple(self._spikes))

    def resume(self, kept: KeptSpikes) -> None:
        self._num_reports, self._spikes = kept.num_reports, deque(kept.spikes)


@dataclass(frozen=True)
class KeptEntropyFall(Kept):
    """Logarithms: the newest scores, and their medians of three."""

    streak: KeptStreak = field(default_factory=KeptStreak)
    scores: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()


class EntropyFall:
    """Whether the entropy (its logarithm) fell to a fifth within 20 steps and has stayed low.

    By medians of three: one row decides nothing. The reward does not speak against it: a policy
    that repeats itself can still be rewarded, for a while.
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

    def kept(self) -> KeptEntropyFall:
        return KeptEntropyFall(self.streak.kept(), tuple(self._scores), tuple(self._levels))

    def resume(self, kept: KeptEntropyFall) -> None:
        self.streak.resume(kept.streak)
        self._scores = deque(kept.scores, _LEVEL_STEPS)
        self._levels = deque(kept.levels, ENTROPY_CRASH_WITHIN_STEPS)


@dataclass(frozen=True)
class KeptStillness(Kept):
    """``reward``: the newest."""

    streak: KeptStreak = field(default_factory=KeptStreak)
    reward: float | None = None


class Stillness:
    """No gradient and a reward that stays at its lowest: nothing is learned.

    Loss and reference KL of exactly 0 are no gradient either, where no norm is reported and where
    rounding leaves one of 1e-12. A reward at its best is not the lowest, unless it has never been
    another.
    """

    def __init__(self) -> None:
        self.streak = Streak(NOT_LEARNING_STEPS)
        self._reward: float | None = None

    def observe(self, step: int, values: Mapping[str, float], *, is_lowest: bool) -> None:
        """A row that reports a reward."""
        is_still = _is_still(values)
        if is_still is None:
            return
        reward = values["reward"]
        is_same = self._reward is None or reward == self._reward
        self._reward = reward
        self.streak.observe(step, holds=is_still and is_same and is_lowest)

    def kept(self) -> KeptStillness:
        return KeptStillness(self.streak.kept(), self._reward)

    def resume(self, kept: KeptStillness) -> None:
        self.streak.resume(kept.streak)
        self._reward = kept.reward


def _is_still(values: Mapping[str, float]) -> bool | None:
    """None where the row reports too little for an answer."""
    norm, loss, ref_kl = values.get(GRAD_NORM), values.get("loss"), values.get("ref_kl")
    if norm == 0:
        return True
    if loss is None or ref_kl is None:
        return None if norm is None else False
    return loss == 0 and ref_kl == 0


@dataclass(frozen=True)
class KeptCollapses(Kept):
    """``spikes``: by signal."""

    fall: KeptEntropyFall = field(default_factory=KeptEntropyFall)
    still: KeptStillness = field(default_factory=KeptStillness)
    reward_fall: KeptStreak = field(default_factory=KeptStreak)
    spikes: dict[str, KeptSpikes] = field(default_factory=dict)


class RunCollapses:
    """Of one run: spikes by signal, the fall of the entropy, whether it is dead or stands still."""

    def __init__(self) -> None:
        self.dead = Streak(DEAD_STEPS)
        self.still = Stillness()
        self.fall = EntropyFall()
        self.reward_fall = Streak(REWARD_FALL_STEPS)
        self.spikes: dict[str, Spikes] = {}
        self.lowest = LowestReward()

    def observe_signal(self, spec: SignalSpec, step: int, score: float, band: Band) -> None:
        """A row that was scored."""
        if spec.name == ENTROPY:
            self.fall.observe(step, score, band)
        holds = score - band.median >= LOG_SPIKE and is_spike(spec, band, score)
        if holds or spec.name in self.spikes:
            self.spikes.setdefault(spec.name, Spikes()).observe(step, holds=holds)

    def observe(self, step: int, values: Mapping[str, float]) -> None:
        """The states of the whole run; NaN compares as false."""
        reward, truncation = values.get("reward"), values.get("truncation")
        if reward is None or not abs(reward) < UNBELIEVABLE:
            return
        is_lowest = self.lowest.is_at(reward)
        self.still.observe(step, values, is_lowest=is_lowest)
        if truncation is not None:
            self.dead.observe(step, holds=is_lowest and truncation > ALL_TRUNCATED)

    @property
    def is_any(self) -> bool:
        """Whether any of them lasts."""
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
        """What is now is normal; who is dead or stands still does so since when it did."""
        self.fall.clear()
        self.reward_fall.clear()
        for spikes in self.spikes.values():
            spikes.clear()

    def clear(self) -> None:
        self.relearn()
        self.dead.clear()
        self.still.streak.clear()

    def kept(self) -> KeptCollapses:
        """All but ``lowest`` and ``dead``, which are in the bank's part by their old names."""
        spikes = {name: each.kept() for name, each in self.spikes.items()}
        return KeptCollapses(self.fall.kept(), self.still.kept(), self.reward_fall.kept(), spikes)

    def resume(self, kept: KeptCollapses) -> None:
        self.fall.resume(kept.fall)
        self.still.resume(kept.still)
        self.reward_fall.resume(kept.reward_fall)
        for name, of_signal in kept.spikes.items():
            self.spikes.setdefault(name, Spikes()).resume(of_signal)
