"""Collapses: states so extreme that one signal is enough for an alert.

- blow-up: a signal is 20 times and 10 sigma above its baseline, or the entropy is 8 times and
  10 sigma below. For the gradient norm and a reference KL, reward and loss can explain the change
  (``around_onset.py``).
- spikes: single steps 1000 times above the baseline, several times.
- entropy fall: to a fifth within 20 steps.
- truncation: most responses are truncated, where few were.
- dead: nearly all responses are truncated, and the reward is the lowest of the run.
- not learning: gradients are zero, and the reward stays at its lowest.
- reward fall: the reward stays far below its best (``reward_trend.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dfx_agent.judge.divergence.bands import Band
from dfx_agent.judge.divergence.saved_state import SavedState
from dfx_agent.judge.divergence.symptoms import CALM_STEPS, SIGNALS, SignalSpec
from dfx_agent.snapshot import CollapseKind, CollapseRow

BLOW_UP_STEPS = 5
BLOW_UP_FACTOR = 20.0
BLOW_UP_Z = 10.0
# the largest change of a healthy run, while its reward rose, was 4.9 times at 7.2 sigma
ENTROPY_FALL_FACTOR = 8.0
# no healthy run has a single such step
SPIKE_FACTOR = 1000.0
SPIKE_STEPS = 3
LEAST_USUAL_NORM = 0.01
SPIKE_WINDOW_STEPS = 64
# the largest change of a healthy run was 4.2 times at 5.6 sigma, in 20 steps
ENTROPY_CRASH_FACTOR = 5.0
ENTROPY_CRASH_Z = 6.0
ENTROPY_CRASH_WITHIN_STEPS = 20
ENTROPY_CRASH_STEPS = 1
JUMP_STEPS = 3
DEAD_STEPS = 8
NOT_LEARNING_STEPS = 32
# the longest of 81 healthy runs was 13
REWARD_FALL_STEPS = 20
ENTROPY, GRAD_NORM, REWARD = "entropy", "grad_norm", "reward"
REFERENCE_KLS = frozenset({"ref_kl", "ref_kl_reward"})
# learning itself moves these signals; any other signal blows up even if the reward rises
MOVED_BY_LEARNING = frozenset({ENTROPY, GRAD_NORM}) | REFERENCE_KLS
# a larger number would overflow sums and exponents; no real signal is near it
UNBELIEVABLE = 1e100
MOST_TRUNCATED = 0.5
TRUNCATION_RISE = 0.4
ALL_TRUNCATED = 0.9
REWARD_FLOOR_MARGIN = 0.01
# log of the smallest factor of a collapse by size
LOG_FAR = math.log(min(BLOW_UP_FACTOR, ENTROPY_FALL_FACTOR, SPIKE_FACTOR))
_LOG_BLOW_UP, LOG_SPIKE = math.log(BLOW_UP_FACTOR), math.log(SPIKE_FACTOR)
_LOG_ENTROPY_FALL, _LOG_LEAST_NORM = math.log(ENTROPY_FALL_FACTOR), math.log(LEAST_USUAL_NORM)
# one token can make a reference KL of any size, so a single step is no spike
_NO_SPIKES = frozenset({ENTROPY, "clip_fraction", "response_length"}) | REFERENCE_KLS
# signals that can cause an alert by their size alone
SIZED = frozenset(spec.name for spec in SIGNALS if not spec.is_raw or spec.name == REWARD)

# steps after which a collapse causes an alert
_ENOUGH_STEPS: Mapping[CollapseKind, int] = {
    "blow_up": BLOW_UP_STEPS,
    "spikes": SPIKE_STEPS,
    "entropy_fall": ENTROPY_CRASH_STEPS,
    "truncation": JUMP_STEPS,
    "dead": DEAD_STEPS,
    "not_learning": NOT_LEARNING_STEPS,
    "reward_fall": REWARD_FALL_STEPS,
}


def lasting(rows: Iterable[CollapseRow]) -> list[CollapseRow]:
    """Collapses that have lasted long enough for an alert."""
    return [row for row in rows if row.num_steps >= _ENOUGH_STEPS[row.kind]]


@dataclass(frozen=True)
class SavedStreak(SavedState):
    """Saved state of a ``Streak``."""

    num_steps: int = 0
    onset_step: int | None = None
    num_without: int = 0
    """Steps in a row without the state."""
    last_step: int | None = None


class Streak:
    """Counts steps in a row with a state.

    A streak of ``enough`` steps ends only after 16 steps without the state.
    """

    def __init__(self, enough: int) -> None:
        self.num_steps = 0
        self.onset_step: int | None = None
        self.last_step: int | None = None  # the last step with the state
        self.is_held = False  # while True, the streak does not end
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

    def save(self) -> SavedStreak:
        return SavedStreak(self.num_steps, self.onset_step, self._num_without, self.last_step)

    def resume(self, saved: SavedStreak) -> None:
        self.num_steps, self.onset_step = saved.num_steps, saved.onset_step
        self._num_without, self.last_step = saved.num_without, saved.last_step


def is_blown_up(spec: SignalSpec, band: Band, score: float) -> bool:
    """Whether a signal is far beyond its baseline; False for a raw signal."""
    if spec.is_raw:
        return False
    far = score - band.median
    if spec.name == ENTROPY and far < 0:
        return -far >= _LOG_ENTROPY_FALL and -far >= BLOW_UP_Z * band.size_scale
    return far >= _LOG_BLOW_UP and far >= BLOW_UP_Z * band.size_scale


def is_spike(spec: SignalSpec, band: Band, score: float) -> bool:
    """Whether a signal that can grow without bound is 1000 times above its baseline."""
    far = score - band.median
    if far < LOG_SPIKE or spec.is_raw or spec.name in _NO_SPIKES:
        return False
    # while nothing is learned, a gradient norm has no usual size: the first success is no spike
    if spec.name == GRAD_NORM and band.median < _LOG_LEAST_NORM:
        return False
    return far >= BLOW_UP_Z * band.size_scale


def is_cut_off(band: Band, truncation: float) -> bool:
    """Whether most responses are truncated, where few were."""
    return truncation > MOST_TRUNCATED and truncation > band.median + TRUNCATION_RISE


def believed(spec: SignalSpec, value: float | None) -> float | None:
    """The value to score. None for NaN and Inf; a huge finite number is capped."""
    if value is None or abs(value) < UNBELIEVABLE:
        return value
    is_scored = math.isfinite(value) and not spec.is_raw
    return math.copysign(UNBELIEVABLE, value) if is_scored else None
