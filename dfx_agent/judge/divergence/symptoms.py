"""The signals of the detector, their families, and the symptoms of each family.

A symptom is "this family of signals has moved in this direction".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

from dfx_agent.judge.divergence.saved_state import SavedState
from dfx_agent.snapshot import SymptomRow

Direction = Literal["up", "down"]

ACTIVE_STEPS = 10
# a move that reached this distance on fewer than two rows ends when its signals are within
# LASTING_Z
FAR_Z = 6.0
FAR_ROWS = 2
LASTING_Z = 1.0
CALM_Z = 2.0
CALM_STEPS = 16


@dataclass(frozen=True)
class SignalSpec:
    """How one signal is scored."""

    name: str
    symptom: str
    """Family of the signal."""
    directions: tuple[Direction, ...]
    """Directions in which a move is bad."""
    least: float | None
    """Smaller values count as this one, and the score is a logarithm. None: the raw value."""
    scale_floor: float
    """The smallest standard deviation that is accepted, in units of the score."""
    where: str
    """The place that a NaN of this signal points to."""
    is_signed: bool = False
    """Whether the value can be negative; then its size is scored."""
    is_zero_silent: bool = False
    """Whether a value of 0 is not scored."""
    starts_at_zero: bool = False
    """Whether the first rows of a run say nothing about later rows."""

    @cached_property
    def is_raw(self) -> bool:
        return self.least is None

    @cached_property
    def _least_score(self) -> float:
        return 0.0 if self.least is None else math.log(self.least)

    def score(self, value: float) -> float | None:
        """The score of a value; None if it is not scored (a gradient norm of 0)."""
        if self.is_zero_silent and value == 0:
            return None
        if self.least is None:
            return value
        size = abs(value) if self.is_signed else value
        return math.log(size) if size > self.least else self._least_score

    def value(self, score: float) -> float:
        """The inverse of ``score``; infinite if the score is too large."""
        if self.least is None:
            return score
        return math.exp(score) if score < 700 else math.inf


class StepSignals(dict[str, float]):
    """Values of one step by signal."""

    # signals that are read from another metric from this step on: they need a new baseline
    changed: frozenset[str] = frozenset()


_UP: tuple[Direction, ...] = ("up",)
_BOTH: tuple[Direction, ...] = ("up", "down")

SIGNALS = (
    SignalSpec("policy_kl", "divergence", _UP, 1e-3, 0.30, "logprob", is_signed=True),
    SignalSpec("policy_kl_k2", "divergence", _UP, 1e-3, 0.30, "logprob"),
    SignalSpec("ref_kl", "divergence", _UP, 3e-2, 0.15, "logprob", starts_at_zero=True),
    SignalSpec("ref_kl_reward", "divergence", _UP, 3e-2, 0.15, "logprob", starts_at_zero=True),
    SignalSpec("mismatch_kl", "divergence", _UP, 5e-3, 0.20, "logprob", is_signed=True),
    SignalSpec("mismatch_kl_k3", "divergence", _UP, 5e-3, 0.20, "logprob"),
    SignalSpec("mismatch_logp", "divergence", _UP, 5e-3, 0.20, "logprob"),
    SignalSpec("clip_fraction", "divergence", _UP, 2e-3, 0.30, "logprob"),
    SignalSpec("grad_norm", "grad_norm", _UP, 1e-3, 0.25, "grad", is_zero_silent=True),
    SignalSpec("entropy", "entropy", _BOTH, 1e-3, 0.12, "logprob"),
    SignalSpec("reward", "reward", ("down",), None, 0.05, "reward"),
    SignalSpec("response_length", "length", _BOTH, 2.0, 0.12, "length"),
    SignalSpec("truncation", "length", _UP, None, 0.05, "length"),
    # a loss is in no family: its meaning differs between methods, only a blow-up is always bad
    SignalSpec("loss", "loss", (), 0.1, 0.30, "loss", is_signed=True),
)


# unchanged rows are the same object, so they compare fast
_row = lru_cache(maxsize=1024)(SymptomRow)


@dataclass(frozen=True)
class SavedSymptom(SavedState):
    """Saved state of a ``Symptom``."""

    EARLIER: ClassVar = {"onset": "onset_step", "to": "active_to_row", "held": "is_held"}

    onset_step: int | None
    active_to_row: int
    """The last row in which the symptom can be active."""
    is_held: bool
    """Whether the symptom stays active until it is released."""
    num_far: int = 0
    latest_z: float | None = None


class Symptom:
    """One family of signals that has moved in one direction.

    A symptom is active for 10 rows (step reports) after an alarm. It ends earlier if the move was
    small and the signals are back at their baseline, or if the reward is above its baseline again.
    """

    def __init__(self, name: str, direction: Direction) -> None:
        self.name = name
        self.direction = direction
        self._quiet_row = _row(name, direction, False, None)  # noqa: FBT003
        self.onset_step: int | None = None
        self._active_to_row = -1
        self._is_held = False
        self._num_far = 0
        self._latest_z: float | None = None

    def observe(self, row: int, latest: float) -> None:
        """Process the largest distance of the family's signals in this row, after its alarms."""
        if self._num_far and latest < LASTING_Z and not self.is_active(row):
            self._num_far = 0
        self._num_far += latest >= FAR_Z
        self._latest_z = latest

    def alarm(self, row: int, onset_step: int) -> None:
        """Become active because a signal of the family raised an alarm in this row."""
        if not self.is_active(row) or self.onset_step is None:
            self.onset_step = onset_step
        self._active_to_row = max(self._active_to_row, row + ACTIVE_STEPS - 1)

    def is_active(self, row: int) -> bool:
        return self._is_held or (row <= self._active_to_row and self._still_holds())

    def _still_holds(self) -> bool:
        z = self._latest_z
        if z is None or z >= LASTING_Z:
            return True
        return self._num_far >= FAR_ROWS and (z > 0 or self.name != "reward")

    def hold(self, row: int) -> None:
        """If active now, stay active until released."""
        self._is_held = self.is_active(row)

    def release(self) -> None:
        self._is_held = False

    def clear(self) -> None:
        self.onset_step = None
        self._active_to_row = -1
        self._is_held = False
        self._num_far, self._latest_z = 0, None

    def rewind(self, step: int) -> None:
        """Drop a change at ``step`` or later, because the job repeats these steps."""
        if self.onset_step is not None and self.onset_step >= step:
            self.clear()

    def as_row(self, row: int) -> SymptomRow:
        is_over = row > self._active_to_row and not self._is_held
        if is_over or not self.is_active(row):
            return self._quiet_row
        return _row(self.name, self.direction, True, self.onset_step)  # noqa: FBT003

    def save(self) -> SavedSymptom:
        return SavedSymptom(
            self.onset_step, self._active_to_row, self._is_held, self._num_far, self._latest_z
        )

    def resume(self, saved: SavedSymptom) -> None:
        self.onset_step = saved.onset_step
        self._active_to_row, self._is_held = saved.active_to_row, saved.is_held
        self._num_far, self._latest_z = saved.num_far, saved.latest_z


def symptoms_by_family() -> dict[tuple[str, Direction], Symptom]:
    """One symptom for each family and direction."""
    symptoms: dict[tuple[str, Direction], Symptom] = {}
    for spec in SIGNALS:
        for direction in spec.directions:
            symptoms.setdefault((spec.symptom, direction), Symptom(spec.symptom, direction))
    # a rising reward is good, but not a jump to which responses then adapt (``bank.py``)
    symptoms["reward", "up"] = Symptom("reward", "up")
    return symptoms


class Calm:
    """Counts rows in a row in which a family is not beyond its baseline in one direction (z <= 2).

    A reward far above its band counts as calm for the direction "down".
    """

    def __init__(self, direction: Direction) -> None:
        self._sign = 1.0 if direction == "up" else -1.0
        self.num_rows = 0

    def observe(self, zs: Iterable[float]) -> None:
        """Process one row: the distances of the family's signals.

        A row without scores is ignored.
        """
        zs = list(zs)
        if zs:
            is_near = all(self._sign * z <= CALM_Z for z in zs)
            self.num_rows = self.num_rows + 1 if is_near else 0

    @property
    def is_calm(self) -> bool:
        return self.num_rows >= CALM_STEPS
