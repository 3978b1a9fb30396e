"""NaN and Inf: in losses and gradients as single processes report them, and over rows of a run.

The first is independent of whether a step is complete: one value is enough.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from dfx_agent.base.text import capitalized, joined
from dfx_agent.judge.divergence import sentences
from dfx_agent.judge.divergence.kept import Kept
from dfx_agent.judge.divergence.symptoms import SIGNALS

Place = Annotated[str, Field(pattern="^(loss|grad)$")]

KEEP_STEPS = 10
NONFINITE_STEPS = 5
KEEP_SECONDS = 120.0  # alerts are looked at every 5 s: ten steps may pass between two looks
_WORDS = {"loss": "the loss", "grad": "the gradient norm"}
_MADE_IN_ORDER = ("loss", "grad")  # within a step
_PLACES = {spec.name: spec.where for spec in SIGNALS}


@dataclass
class Break:
    """Since when one place is broken; ``ranks`` are those of its first step."""

    step: int
    seconds: float
    value: float
    key: str
    ranks: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class KeptBreak(Kept):
    """The break of one place, as stored between two agents.

    ``newest_step``: the last step that was broken. ``newest_seconds``: Unix time of the last broken
    value; None where no value had a time of its own (logs, files written before 2026-11-24).
    """

    step: int
    seconds: float
    value: float
    key: str
    ranks: tuple[str, ...]
    newest_step: int
    newest_seconds: float | None = None


class BrokenValues:
    """One run; a place that was finite again for 10 steps and 120 s of events is forgotten."""

    def __init__(self) -> None:
        self._first: dict[str, Break] = {}
        self._newest: dict[str, int] = {}
        self._newest_seconds: dict[str, float] = {}
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
        """A value that is NaN or infinite. Of one that is not timed only the steps count."""
        first = self._first.get(place)
        if first is None or step < first.step or step - self._newest[place] > KEEP_STEPS:
            first = self._first[place] = Break(step, seconds, value, key)
        if step == first.step:
            first.ranks.add(rank)
            first.seconds = min(first.seconds, seconds)
        # a rank that lags behind does not make it older
        self._newest[place] = max(step, self._newest.get(place, step))
        if is_timed:
            self._newest_seconds[place] = max(seconds, self._newest_seconds.get(place, seconds))
        self.reached(step, seconds)

    def reached(self, step: int, seconds: float) -> None:
        """The run reports this step, by ``seconds`` of the epoch."""
        self._step, self._seconds = max(self._step, step), max(self._seconds, seconds)

    def rewind(self, step: int) -> None:
        """The job repeats this step: what it reported for it and for later steps is void."""
        self._step = min(self._step, step - 1)
        for place in [p for p, first in self._first.items() if first.step >= step]:
            del self._first[place], self._newest[place]
            self._newest_seconds.pop(place, None)
        for place, newest in self._newest.items():
            self._newest[place] = min(newest, step - 1)

    def kept(self) -> dict[Place, KeptBreak]:
        return {
            place: KeptBreak(first.step, first.seconds, first.value, first.key,
                             tuple(sorted(first.ranks)), self._newest[place],
                             self._newest_seconds.get(place))
            for place, first in self._first.items()
        }  # fmt: skip

    def resume(self, kept: Mapping[Place, KeptBreak], step: int, seconds: float) -> None:
        """Continue a run that has reached ``step`` by ``seconds`` of the epoch."""
        for place, k in kept.items():
            self._first[place] = Break(k.step, k.seconds, k.value, k.key, set(k.ranks))
            self._newest[place] = k.newest_step
            if k.newest_seconds is not None:
                self._newest_seconds[place] = k.newest_seconds
        self._step = max([step, *self._newest.values()])
        self._seconds = max([seconds, *self._newest_seconds.values()])

    def breaks(self, *, is_scaled: bool) -> list[tuple[str, Break]]:
        """Place and break, in the order in which they began.

        Of one step the loss comes first, whenever each was told: gradients are made from it, and
        ``torch/loss`` is told at the optimizer's step, after clipping told the norm.

        A gradient scaler (``is_scaled``) overflows now and then by design: what it skips is no
        finding while the losses are finite.
        """
        current = [
            (place, first)
            for place, first in self._first.items()
            if self._step - self._newest[place] <= KEEP_STEPS
            or self._seconds - self._newest_seconds.get(place, -math.inf) < KEEP_SECONDS
        ]
        if is_scaled and all(place == "grad" for place, _ in current):
            return []
        return sorted(current, key=lambda each: (each[1].step, _MADE_IN_ORDER.index(each[0])))


class NonFinite:
    """Rows of the newest 5 with NaN or Inf, by where it was."""

    def __init__(self) -> None:
        self._rows: dict[str, deque[int]] = {}
        self._names: set[str] = set()  # signals that had a value

    def observe(self, row: int, values: Mapping[str, float]) -> None:
        """A place is known from its first value, so that its count exists before the first NaN."""
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
        newest = row - NONFINITE_STEPS
        return {
            where: sum(r > newest for r in rows) if rows else 0
            for where, rows in self._rows.items()
        }

    def kept(self) -> dict[str, tuple[int, ...]]:
        return {where: tuple(rows) for where, rows in self._rows.items()}

    def resume(self, kept: Mapping[str, Iterable[int]]) -> None:
        self._rows = {where: deque(rows, NONFINITE_STEPS) for where, rows in kept.items()}


def sentence(breaks: list[tuple[str, Break]]) -> str:
    """As: The loss has been NaN since step 12 on rank 1."""
    place, first = breaks[0]
    what = "NaN" if math.isnan(first.value) else "infinite"
    ranks = sorted(first.ranks)
    where = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
    said = sentences.BROKEN(
        place=capitalized(_WORDS[place]), value=what, step=first.step, ranks=where
    )
    later = ", ".join(f"{_WORDS[p]} (step {b.step})" for p, b in breaks[1:])
    return joined([said, sentences.BROKEN_NEXT(places=later) if later else ""])
