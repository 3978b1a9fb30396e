"""Which signals are watched, in which family and direction, and the families' state over steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

from dfx_agent.judge.divergence.kept import Kept
from dfx_agent.snapshot import SymptomRow

Direction = Literal["up", "down"]

ACTIVE_STEPS = 10
# a move that was not as far as this on two rows is over as soon as its signals are within LASTING_Z
FAR_Z = 6.0
FAR_ROWS = 2
LASTING_Z = 1.0
CALM_Z = 2.0
CALM_STEPS = 16


@dataclass(frozen=True)
class SignalSpec:
    """How one signal is scored.

    ``least`` is the materiality floor: smaller values count as this one, and scores are logarithms;
    None scores the raw value. ``scale_floor`` is the smallest standard deviation believed, in the
    scale of the scores. ``where`` is the place that a NaN of this signal points to.
    ``starts_at_zero``: its first rows say nothing of those after them.
    """

    name: str
    symptom: str
    directions: tuple[Direction, ...]
    least: float | None
    scale_floor: float
    where: str
    is_signed: bool = False
    is_zero_silent: bool = False
    starts_at_zero: bool = False

    @cached_property
    def is_raw(self) -> bool:
        return self.least is None

    @cached_property
    def _least_score(self) -> float:
        return 0.0 if self.least is None else math.log(self.least)

    def score(self, value: float) -> float | None:
        """None when the value says nothing: a gradient norm of 0 means that nothing was learned."""
        if self.is_zero_silent and value == 0:
            return None
        if self.least is None:
            return value
        size = abs(value) if self.is_signed else value
        return math.log(size) if size > self.least else self._least_score

    def value(self, score: float) -> float:
        """The inverse of ``score``; large scores would overflow, and are infinite."""
        if self.least is None:
            return score
        return math.exp(score) if score < 700 else math.inf


class StepSignals(dict[str, float]):
    """Values of one step by signal; ``changed``: those that another metric speaks for from here.

    Two metrics differ in level and spread: what one taught says nothing of the other.
    """

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
    # in no family: what a loss means differs by method, only its blowing up does not
    SignalSpec("loss", "loss", (), 0.1, 0.30, "loss", is_signed=True),
)


# rows that stay the same are the same object: made once, and equal without a look into them
_row = lru_cache(maxsize=1024)(SymptomRow)


@dataclass(frozen=True)
class KeptSymptom(Kept):
    """``active_to_row``: the last row on which it can be active."""

    EARLIER: ClassVar = {"onset": "onset_step", "to": "active_to_row", "held": "is_held"}

    onset_step: int | None
    active_to_row: int
    is_held: bool
    num_far: int = 0
    latest_z: float | None = None


class Symptom:
    """One family in one direction, counted in rows (step reports).

    Active for 10 rows after an alarm, but only while it is true: a small move ends when its signals
    are back, and a reward has fallen only while it is below its baseline.
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
        """The largest distance of its signals in this direction, after the alarms of this row."""
        if self._num_far and latest < LASTING_Z and not self.is_active(row):
            self._num_far = 0
        self._num_far += latest >= FAR_Z
        self._latest_z = latest

    def alarm(self, row: int, onset_step: int) -> None:
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
        """Stay active, if active now, until released."""
        self._is_held = self.is_active(row)

    def release(self) -> None:
        self._is_held = False

    def clear(self) -> None:
        self.onset_step = None
        self._active_to_row = -1
        self._is_held = False
        self._num_far, self._latest_z = 0, None

    def rewind(self, step: int) -> None:
        """A change at ``step`` or later has not happened any more."""
        if self.onset_step is not None and self.onset_step >= step:
            self.clear()

    def as_row(self, row: int) -> SymptomRow:
        is_over = row > self._active_to_row and not self._is_held
        if is_over or not self.is_active(row):
            return self._quiet_row
        return _row(self.name, self.direction, True, self.onset_step)  # noqa: FBT003

    def kept(self) -> KeptSymptom:
        return KeptSymptom(
            self.onset_step, self._active_to_row, self._is_held, self._num_far, self._latest_z
        )

    def resume(self, kept: KeptSymptom) -> None:
        self.onset_step = kept.onset_step
        self._active_to_row, self._is_held = kept.active_to_row, kept.is_held
        self._num_far, self._latest_z = kept.num_far, kept.latest_z


def symptoms_by_family() -> dict[tuple[str, Direction], Symptom]:
    """A symptom for each family and direction."""
    found: dict[tuple[str, Direction], Symptom] = {}
    for spec in SIGNALS:
        for direction in spec.directions:
            found.setdefault((spec.symptom, direction), Symptom(spec.symptom, direction))
    return found


class Calm:
    """How long one family is not beyond its baseline in one direction: rows with z <= 2 there.

    A reward above its band has not fallen, however far above it is.
    """

    def __init__(self, direction: Direction) -> None:
        self._sign = 1.0 if direction == "up" else -1.0
        self.num_rows = 0

    def observe(self, zs: Iterable[float]) -> None:
        """Rows on which nothing was scored say nothing."""
        zs = list(zs)
        if zs:
            is_near = all(self._sign * z <= CALM_Z for z in zs)
            self.num_rows = self.num_rows + 1 if is_near else 0

    @property
    def is_calm(self) -> bool:
        return self.num_rows >= CALM_STEPS
