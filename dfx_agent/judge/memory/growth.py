"""Detects memory that grows steadily from step to step.

Healthy jobs also grow for a while: caches fill up, workers start, checkpoints are written. A leak
does not stop. The last 64 steps are split into four quarters. Their medians must rise, each rise
must be at least 0.8 of the mean rise, and the total must exceed the noise of single steps. For a
process that leaks already, 0.4 is enough, because a leak at every tenth step grows unevenly.

If memory is nearly exhausted, 16 such steps are enough if they reach a new maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from dfx_agent.facts.memory import MemoryFacts

MIN_STEPS, URGENT_STEPS = 48, 16
# smaller growth within the checked steps cannot be distinguished from noise
LEAST_BYTES = 32 * 2**20
LEAST_SHARE = 0.01
_NUM_PARTS = 4
_FIRST_STEPS = 2  # growth from these steps on began with the run
SMALLEST_RISE, RISE_TO_STAY = 0.8, 0.4


def steady_bytes_per_step(
    samples: Sequence[tuple[int, float]],
    least_bytes: float = LEAST_BYTES,
    smallest_rise: float = SMALLEST_RISE,
    min_steps: int = MIN_STEPS,
) -> float | None:
    """Growth per step in bytes; 0.0 if not steady or too small, None below ``min_steps`` samples.

    ``samples``: (step, bytes), ascending steps. ``least_bytes``: smallest total growth.
    ``smallest_rise``: smallest rise of a quarter as a share of the mean rise.
    """
    if len(samples) < min_steps:
        return None
    ends = [len(samples) * part // _NUM_PARTS for part in range(_NUM_PARTS + 1)]
    parts = [samples[begin:end] for begin, end in pairwise(ends)]
    middles = [
        (median(step for step, _ in part), median(num_bytes for _, num_bytes in part))
        for part in parts
    ]
    (first_step, first), (last_step, last) = middles[0], middles[-1]
    per_step = (last - first) / (last_step - first_step)
    is_steady = all(
        (after - before) >= smallest_rise * per_step * (later - earlier)
        for (earlier, before), (later, after) in pairwise(middles)
    )
    noise = median(
        abs(value - middle - per_step * (step - at))
        for part, (at, middle) in zip(parts, middles, strict=True)
        for step, value in part
    )
    num_steps = samples[-1][0] - samples[0][0]
    least = max(least_bytes, LEAST_SHARE * last, (_NUM_PARTS - 1) * noise)
    return per_step if is_steady and per_step * num_steps >= least else 0.0


def is_higher_than_before(samples: Sequence[tuple[int, float]], highest: float | None) -> bool:
    """Whether at least half of the growth is above the ``highest`` value of earlier steps.

    A buffer that is filled and emptied again, as at each evaluation, only returns to its old level.
    """
    part = len(samples) // _NUM_PARTS
    first, last = (
        median(num_bytes for _, num_bytes in quarter)
        for quarter in (samples[:part], samples[-part:])
    )
    return highest is None or last - highest >= (last - first) / 2


def urgent_bytes_per_step(
    samples: Sequence[tuple[int, float]], before: Sequence[tuple[int, float]]
) -> float:
    """Growth per step of the last 16 steps if it is steady and reaches a new maximum; else 0.0.

    ``before``: samples of earlier steps.
    """
    latest = samples[-URGENT_STEPS:]
    per_step = steady_bytes_per_step(latest, min_steps=URGENT_STEPS)
    if not per_step:
        return 0.0
    first, last = latest[0], latest[-1]
    highest = max(
        (num_bytes for step, num_bytes in (*samples, *before) if step < first[0]), default=0.0
    )
    return per_step if last[1] - highest >= (last[1] - first[1]) / 2 else 0.0


class Begin(NamedTuple):
    """The step at which growth began."""

    step: int
    is_earlier: bool
    """Whether it may have begun earlier, because there are no earlier samples."""

    def __str__(self) -> str:
        return f"{self.step} or earlier" if self.is_earlier else str(self.step)


Begins = dict[tuple[str, str], Begin]  # begin of each finding by role and cause


def begin_of_growth(samples: Iterable[tuple[int, float]], bytes_per_step: float) -> Begin:
    """The step at which memory began to grow by ``bytes_per_step``.

    The step at which "constant, then a line of this slope" fits best. ``samples``: in any order,
    at least one.
    """
    points = sorted(dict(samples).items())
    begin = min(points, key=lambda point: _deviation(points, point[0], bytes_per_step))[0]
    is_first = begin == points[0][0]
    return Begin(begin, is_earlier=is_first and begin > _FIRST_STEPS)


def seconds_of(facts: MemoryFacts, step: int, now_seconds: float) -> float:
    """Estimated Unix time of an earlier step, from the usual duration of a step."""
    num_steps = max(0, (facts.step or step) - step)
    return now_seconds - num_steps * (facts.step_seconds or 0.0)


def _deviation(points: Sequence[tuple[int, float]], begin: int, bytes_per_step: float) -> float:
    levels = [value - bytes_per_step * max(0, step - begin) for step, value in points]
    level = median(levels)
    return sum(abs(value - level) for value in levels)
