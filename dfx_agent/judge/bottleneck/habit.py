"""What a figure of a step usually is, and since when it is not that any more."""

from __future__ import annotations

from collections import deque
from statistics import fmean, median
from typing import NamedTuple

_KEEP_STEPS = 64
_LEAST_BEFORE = 6
_WARM_UP_STEPS = 2  # of a run: they compile, allocate, and find their queues empty or full
NUM_NEW = 3
NUM_COMPARED = 2 * NUM_NEW  # newest steps, at most, whose mean is told
_SPREADS = 4.0
_MAD_TO_SIGMA = 1.4826


class Change(NamedTuple):
    """``usual`` was the median before ``since_step``; ``now`` is the mean from there on."""

    usual: float
    now: float
    since_step: int

    @property
    def excess(self) -> float:
        return self.now - self.usual

    def until(self, usual: str) -> str:
        """As in "; until step 11 it was 0.2 s"."""
        return f"; until step {self.since_step - 1} it was {usual}"


class Habit:
    """One figure by step. Its newest three steps are compared with those before.

    While a change lasts, what it is compared with stays: a fault is no habit.
    """

    def __init__(self) -> None:
        self._values: deque[tuple[int, float]] = deque(maxlen=_KEEP_STEPS)
        self._found: tuple[float, int, float] | None = None  # usual, since step, least

    def add(self, step: int, value: float) -> None:
        if step > (self._values[-1][0] if self._values else _WARM_UP_STEPS):
            self._values.append((step, value))

    @property
    def usual(self) -> float | None:
        """None before there are enough steps."""
        if self._found is not None:
            return self._found[0]
        before = [value for _, value in self._values]
        return median(before) if len(before) >= _LEAST_BEFORE else None

    def change(self, least: float, *, falls: bool = False) -> Change | None:
        """None unless it is ``least`` beside its habit, and clearly, in the newest steps."""
        sign = -1.0 if falls else 1.0
        newest = [value for _, value in self._values][-NUM_NEW:]
        if self._found is None:
            self._found = self._new_change(least, sign)
        if self._found is None:
            return None
        usual, since, needed = self._found
        if sign * (median(newest) - usual) < needed / 2:
            self._found = None
            return None
        return Change(usual, fmean(self._since(since)), since)

    def _since(self, since: int) -> list[float]:
        """The newest values, none of before the change."""
        return [value for step, value in self._values if step >= since][-NUM_COMPARED:]

    def _new_change(self, least: float, sign: float) -> tuple[float, int, float] | None:
        values = list(self._values)
        before = [value for _, value in values[:-NUM_NEW]]
        if len(before) < _LEAST_BEFORE:
            return None
        usual = median(before)
        spread = _MAD_TO_SIGMA * median(abs(value - usual) for value in before)
        needed = max(least, _SPREADS * spread)
        newest = [value for _, value in values[-NUM_NEW:]]
        if sign * (median(newest) - usual) < needed:
            return None
        since = values[-1][0]
        for step, value in reversed(values):
            if sign * (value - usual) < needed / 2:
                break
            since = step
        return usual, since, needed
