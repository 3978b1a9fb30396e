"""NaN and Inf: in losses and gradients of single processes, and in the rows of a run.

``BrokenValues`` needs one value of one process, even if its step is not complete.
``NonFinite`` counts rows of a run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from dfx_agent.base.text import capitalized, joined
from dfx_agent.judge.divergence import sentences
from dfx_agent.judge.divergence.saved_state import SavedState
from dfx_agent.judge.divergence.symptoms import SIGNALS

Place = Annotated[str, Field(pattern="^(loss|grad)$")]

KEEP_STEPS = 10
NONFINITE_STEPS = 5
KEEP_SECONDS = 120.0  # alerts are evaluated every 5 s: ten steps may pass between two evaluations
_WORDS = {"loss": "the loss", "grad": "the gradient norm"}
_ORDER_IN_STEP = ("loss", "grad")
_PLACES = {spec.name: spec.where for spec in SIGNALS}


@dataclass
class Break:
    """Since when one place (loss or gradient) has been NaN or infinite."""

    step: int
    """First broken step."""
    seconds: float
    """Unix time of the first broken value."""
    value: float
    key: str
    """Native name of the metric."""
    ranks: set[str] = field(default_factory=set)
    """Labels of the ranks that were broken in the first broken step."""


@dataclass(frozen=True)
class SavedBreak(SavedState):
    """Saved state of one ``Break``."""

    EARLIER: ClassVar = {"newest_step": "latest_step", "newest_seconds": "latest_seconds"}

    step: int
    seconds: float
    value: float
    key: str
    ranks: tuple[str, ...]
    latest_step: int
    """The last broken step."""
    latest_seconds: float | None = None
    """Unix time of the last broken value; None if no value had a time (logs, older files)."""


class BrokenValues:
    """Broken places of one run.

    A place is dropped after it has been finite for 10 steps and for 120 s.
    """

    def __init__(self) -> None:
        self._first: dict[str, Break] = {}
        self._last_step_by_place: dict[str, int] = {}
        self._last_seconds_by_place: dict[str, float] = {}
        self._step, self._seconds = -1, -math.inf

    def observe(
        self,
        place: str,
        key: str,
        rank: str,
        step: int,
        value: float,
        seconds: float,
        *,
        is_timed: bool = True,
    ) -> None:
        """Record a NaN or infinite value.

        ``is_timed``: whether ``seconds`` is the time of the event.
        """
        first = self._first.get(place)
        if first is None or step < first.step or not self._is_current(place, step, seconds):
            first = self._first[place] = Break(step, seconds, value, key)
        if step == first.step:
            first.ranks.add(rank)
            first.seconds = min(first.seconds, seconds)
        # a late rank must not move the last step back
        self._last_step_by_place[place] = max(step, self._last_step_by_place.get(place, step))
        if is_timed:
            self._last_seconds_by_place[place] = max(
                seconds, self._last_seconds_by_place.get(place, seconds)
            )
        self.set_progress(step, seconds)

    def set_progress(self, step: int, seconds: float) -> None:
        """The run has reached this step at Unix time ``seconds``."""
        self._step, self._seconds = max(self._step, step), max(self._seconds, seconds)

    def rewind(self, step: int) -> None:
        """Drop what was reported for this and later steps, because the job repeats them."""
        self._step = min(self._step, step - 1)
        for place in [p for p, first in self._first.items() if first.step >= step]:
            del self._first[place], self._last_step_by_place[place]
            self._last_seconds_by_place.pop(place, None)
        for place, last_step in self._last_step_by_place.items():
            self._last_step_by_place[place] = min(last_step, step - 1)

    def save(self) -> dict[Place, SavedBreak]:
        return {
            place: SavedBreak(first.step, first.seconds, first.value, first.key,
                             tuple(sorted(first.ranks)), self._last_step_by_place[place],
                             self._last_seconds_by_place.get(place))
            for place, first in self._first.items()
        }  # fmt: skip

    def resume(self, saved: Mapping[Place, SavedBreak], step: int, seconds: float) -> None:
        """Continue a run that has reached ``step`` at Unix time ``seconds``."""
        for place, saved_break in saved.items():
            self._first[place] = Break(
                saved_break.step,
                saved_break.seconds,
                saved_break.value,
                saved_break.key,
                set(saved_break.ranks),
            )
            self._last_step_by_place[place] = saved_break.latest_step
            if saved_break.latest_seconds is not None:
                self._last_seconds_by_place[place] = saved_break.latest_seconds
        self._step = max([step, *self._last_step_by_place.values()])
        self._seconds = max([seconds, *self._last_seconds_by_place.values()])

    def _is_current(self, place: str, step: int, seconds: float) -> bool:
        """Whether the place broke lately. A guest on a budget reads values in few steps only."""
        age_seconds = seconds - self._last_seconds_by_place.get(place, -math.inf)
        return step - self._last_step_by_place[place] <= KEEP_STEPS or age_seconds < KEEP_SECONDS

    def breaks(self, *, is_scaled: bool) -> list[tuple[str, Break]]:
        """(place, break) of all broken places, the first one first.

        If loss and gradient broke in the same step, the loss is first, because gradients are
        computed from it. The order of reports does not matter: ``torch/loss`` is reported after the
        norm.

        ``is_scaled``: a gradient scaler overflows from time to time by design. Gradients that it
        skips are no finding while the losses are finite.
        """
        current = [
            (place, first)
            for place, first in self._first.items()
            if self._is_current(place, self._step, self._seconds)
        ]
        if is_scaled and all(place == "grad" for place, _ in current):
            return []
        return sorted(
            current,
            key=lambda place_and_break: (
                place_and_break[1].step,
                _ORDER_IN_STEP.index(place_and_break[0]),
            ),
        )


class NonFinite:
    """Counts rows with NaN or Inf among the last 5 rows, by place."""

    def __init__(self) -> None:
        self._rows: dict[str, deque[int]] = {}
        self._names: set[str] = set()  # signals that had a value

    def observe(self, row: int, values: Mapping[str, float]) -> None:
        """Process one row. A place has a count of 0 from its first value on."""
        if values.keys() <= self._names and math.isfinite(sum(values.values())):
            return
        self._names |= values.keys()
        for name, value in values.items():
            where = _PLACES.get(name)
            if where is None:
                continue
            if where not in self._rows:
                self._rows[where] = deque(maxlen=NONFINITE_STEPS)
            if not math.isfinite(value) and row not in self._rows[where]:
                self._rows[where].append(row)

    def num_steps(self, row: int) -> dict[str, int]:
        """Rows with NaN or Inf among the last 5, by place."""
        oldest_row = row - NONFINITE_STEPS
        return {
            where: sum(broken_row > oldest_row for broken_row in rows) if rows else 0
            for where, rows in self._rows.items()
        }

    def save(self) -> dict[str, tuple[int, ...]]:
        return {where: tuple(rows) for where, rows in self._rows.items()}

    def resume(self, saved: Mapping[str, Iterable[int]]) -> None:
        self._rows = {where: deque(rows, NONFINITE_STEPS) for where, rows in saved.items()}


def broken_sentence(breaks: list[tuple[str, Break]]) -> str:
    """As in "The loss has been NaN since step 12 on rank 1."."""
    place, first = breaks[0]
    value = "NaN" if math.isnan(first.value) else "infinite"
    ranks = sorted(first.ranks)
    where = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
    sentence = sentences.BROKEN(
        place=capitalized(_WORDS[place]), value=value, step=first.step, ranks=where
    )
    later = ", ".join(f"{_WORDS[p]} (step {b.step})" for p, b in breaks[1:])
    return joined([sentence, sentences.BROKEN_NEXT(places=later) if later else ""])
