"""States that need no vote: their size, or how many steps they last, is enough.

A blow-up: one signal 20 times and 10 sigma above its baseline, or entropy 8 times and 10 sigma
below it; of the gradient norm and of a reference KL only where reward and loss do not speak against
it (``around_onset.py``). Spikes: single steps 1000 times above it, again and again. An entropy
fall: to a fifth within 20 steps. Truncation: most responses are cut where few were. Dead: nearly
all are cut and the reward is at the lowest it has been. Not learning: no gradient, and a reward
that stays at its lowest. A reward fall: far below its best, row after row (``reward_trend.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dfx_agent.judge.divergence.bands import Band
from dfx_agent.judge.divergence.kept import Kept
from dfx_agent.judge.divergence.symptoms import CALM_STEPS, SIGNALS, SignalSpec
from dfx_agent.snapshot import CollapseKind, CollapseRow

BLOW_UP_STEPS = 5
BLOW_UP_FACTOR = 20.0
BLOW_UP_Z = 10.0
# the most of any healthy run, seen while its reward rose, is 4.9 times at 7.2 sigma
ENTROPY_FALL_FACTOR = 8.0
# no healthy run has a single such step
SPIKE_FACTOR = 1000.0
SPIKE_STEPS = 3
LEAST_USUAL_NORM = 0.01
SPIKE_WINDOW_STEPS = 64
# the most of any healthy run is 4.2 times at 5.6 sigma, in 20 steps
ENTROPY_CRASH_FACTOR = 5.0
ENTROPY_CRASH_Z = 6.0
ENTROPY_CRASH_WITHIN_STEPS = 20
ENTROPY_CRASH_STEPS = 1
JUMP_STEPS = 3
DEAD_STEPS = 8
NOT_LEARNING_STEPS = 32
# the most of 81 healthy runs is 13
REWARD_FALL_STEPS = 20
ENTROPY, GRAD_NORM, REWARD = "entropy", "grad_norm", "reward"
REFERENCE_KLS = frozenset({"ref_kl", "ref_kl_reward"})
# learning moves them by itself; any other that blows up while the reward rises has blown up
MOVED_BY_LEARNING = frozenset({ENTROPY, GRAD_NORM}) | REFERENCE_KLS
# scored, such a number would overflow sums and exponents; no signal of a job comes near
UNBELIEVABLE = 1e100
MOST_TRUNCATED = 0.5
TRUNCATION_RISE = 0.4
ALL_TRUNCATED = 0.9
REWARD_FLOOR_MARGIN = 0.01
# log of the least factor of a collapse by size
LOG_FAR = math.log(min(BLOW_UP_FACTOR, ENTROPY_FALL_FACTOR, SPIKE_FACTOR))
_LOG_BLOW_UP, LOG_SPIKE = math.log(BLOW_UP_FACTOR), math.log(SPIKE_FACTOR)
_LOG_ENTROPY_FALL, _LOG_LEAST_NORM = math.log(ENTROPY_FALL_FACTOR), math.log(LEAST_USUAL_NORM)
# one token can make a reference KL of any size; one that stays far is a blow-up
_NO_SPIKES = frozenset({ENTROPY, "clip_fraction", "response_length"}) | REFERENCE_KLS
# signals that can page by their size alone
SIZED = frozenset(spec.name for spec in SIGNALS if not spec.is_raw or spec.name == REWARD)

# steps from which on a state pages
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
    """Those that have lasted long enough to page."""
    return [row for row in rows if row.num_steps >= _ENOUGH_STEPS[row.kind]]


@dataclass(frozen=True)
class KeptStreak(Kept):
    """``num_without``: steps in a row without the state."""

    num_steps: int = 0
    onset_step: int | None = None
    num_without: int = 0
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
        return -far >= _LOG_ENTROPY_FALL and -far >= BLOW_UP_Z * band.size_scale
    return far >= _LOG_BLOW_UP and far >= BLOW_UP_Z * band.size_scale


def is_spike(spec: SignalSpec, band: Band, score: float) -> bool:
    """Of a signal that can grow without bound."""
    far = score - band.median
    if far < LOG_SPIKE or spec.is_raw or spec.name in _NO_SPIKES:
        return False
    # while nothing is learned a gradient norm has no usual size: the first success is no spike
    if spec.name == GRAD_NORM and band.median < _LOG_LEAST_NORM:
        return False
    return far >= BLOW_UP_Z * band.size_scale


def is_cut_off(band: Band, truncation: float) -> bool:
    return truncation > MOST_TRUNCATED and truncation > band.median + TRUNCATION_RISE


def believed(spec: SignalSpec, value: float | None) -> float | None:
    """None for what is not scored; a finite number beyond belief has blown up all the same."""
    if value is None or abs(value) < UNBELIEVABLE:
        return value
    is_scored = math.isfinite(value) and not spec.is_raw
    return math.copysign(UNBELIEVABLE, value) if is_scored else None
