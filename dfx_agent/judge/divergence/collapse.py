"""States that need no vote: they are told by their size, and by how many steps they last.

A blow-up: one signal 20 times and 10 sigma above its baseline, or entropy 8 times and 10 sigma
below it; of the gradient norm only where reward and loss do not speak against it
(``around_onset.py``). Truncation: most responses are cut where few were. Dead: nearly all are cut
and the reward is at the lowest it has been.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dfx_agent.judge.divergence.bands import Band
from dfx_agent.judge.divergence.kept import Kept
from dfx_agent.judge.divergence.symptoms import CALM_STEPS, SignalSpec

BLOW_UP_STEPS = 5
BLOW_UP_FACTOR = 20.0
BLOW_UP_Z = 10.0
# the most of any healthy run, seen while its reward rose, is 4.9 times at 7.2 sigma
ENTROPY_FALL_FACTOR = 8.0
JUMP_STEPS = 3
DEAD_STEPS = 8
ENTROPY, GRAD_NORM = "entropy", "grad_norm"
# learning moves them by itself; any other that blows up while the reward rises has blown up
MOVED_BY_LEARNING = frozenset({ENTROPY, GRAD_NORM})
MOST_TRUNCATED = 0.5
TRUNCATION_RISE = 0.4
ALL_TRUNCATED = 0.9
REWARD_FLOOR_MARGIN = 0.01


@dataclass(frozen=True)
class KeptStreak(Kept):
    """``num_without``: steps in a row without the state."""

    num_steps: int
    onset_step: int | None
    num_without: int
    last_step: int | None = None


class Streak:
    """Steps in a row with a state; once it lasted ``enough``, it ends after 16 steps without.

    ``is_held``: it does not end now. ``last_step``: the newest step with the state.
    """

    def __init__(self, enough: int) -> None:
        self.num_steps = 0
        self.onset_step: int | None = None
        self.last_step: int | None = None
        self.is_held = False
        self._enough = enough
        self._num_without = 0

    def observe(self, step: int, *, holds: bool) -> None:
        if holds:
            self.onset_step = step if self.num_steps == 0 else self.onset_step
            self.num_steps += 1
            self.last_step = step
            self._num_without = 0
            return
        self._num_without += 1
        has_ended = self._num_without >= CALM_STEPS and not self.is_held
        if self.num_steps < self._enough or has_ended:
            self.clear()

    def clear(self) -> None:
        self.num_steps = self._num_without = 0
        self.onset_step = self.last_step = None

    def rewind(self, step: int) -> None:
        if self.onset_step is not None and self.onset_step >= step:
            self.clear()

    def kept(self) -> KeptStreak:
        return KeptStreak(self.num_steps, self.onset_step, self._num_without, self.last_step)

    def resume(self, kept: KeptStreak) -> None:
        self.num_steps, self.onset_step = kept.num_steps, kept.onset_step
        self._num_without, self.last_step = kept.num_without, kept.last_step


def is_blown_up(spec: SignalSpec, band: Band, score: float) -> bool:
    """Of a signal scored by its logarithm."""
    if spec.is_raw:
        return False
    far = score - band.median
    if spec.name == ENTROPY and far < 0:
        return -far >= max(math.log(ENTROPY_FALL_FACTOR), BLOW_UP_Z * band.scale)
    return far >= max(math.log(BLOW_UP_FACTOR), BLOW_UP_Z * band.scale)


def is_cut_off(band: Band, truncation: float) -> bool:
    return truncation > MOST_TRUNCATED and truncation > band.median + TRUNCATION_RISE


class LowestReward:
    """Whether the reward is where it was lowest; None until one was reported."""

    def __init__(self) -> None:
        self.lowest: float | None = None

    def is_at(self, reward: float) -> bool:
        self.lowest = reward if self.lowest is None else min(self.lowest, reward)
        return reward <= self.lowest + REWARD_FLOOR_MARGIN * max(1.0, abs(self.lowest))
