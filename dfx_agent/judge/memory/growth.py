"""Whether memory grows step after step, told apart from growth that healthy jobs show.

Caches fill and stop, workers start once, a checkpoint comes and goes: a leak goes on. Of the newest
64 steps the medians of four quarters must rise, each rise at least 0.8 of the mean one, which
must be more than steps differ beside that. Of who leaks already, half of that will do: what leaks
at every tenth step rises by one lump here and by two there.

Who runs out of memory soon is told earlier: by 16 steps that rise so to where it has not been.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from dfx_agent.facts.memory import MemoryFacts

MIN_STEPS, URGENT_STEPS = 48, 16
# smaller growth within the steps looked at is no leak that could be told from chance
LEAST_BYTES = 32 * 2**20
LEAST_SHARE = 0.01
_NUM_PARTS = 4
_FIRST_STEPS = 2  # nothing is known before the first steps, and nothing needs to be
_MIB, _GIB = 2**20, 2**30
SMALLEST_RISE, RISE_TO_STAY = 0.8, 0.4


def steady_bytes_per_step(
    samples: Sequence[tuple[int, float]],
    least_bytes: float = LEAST_BYTES,
    smallest_rise: float = SMALLEST_RISE,
    min_steps: int = MIN_STEPS,
) -> float | None:
    """Growth per step; 0.0 where it is not steady or too small, None below ``min_steps``.

    ``samples`` are (step, bytes), steps rising; ``least_bytes`` of growth over all of them.
    ``smallest_rise``: of each quarter, of the mean one.
    """
    if len(samples) < min_steps:
        return None
    ends = [len(samples) * part // _NUM_PARTS for part in range(_NUM_PARTS + 1)]
    parts = [samples[begin:end] for begin, end in pairwise(ends)]
    middles = [(median(s for s, _ in part), median(b for _, b in part)) for part in parts]
    (first_step, first), (last_step, last) = middles[0], middles[-1]
    per_step = (last - first) / (last_step - first_step)
    is_steady = all(
        (after - before) >= smallest_rise * per_step * (later - earlier)
        for (earlier, before), (later, after) in pairwise(middles)
    )
    beside = median(
        abs(value - middle - per_step * (step - at))
        for part, (at, middle) in zip(parts, middles, strict=True)
        for step, value in part
    )
    num_steps = samples[-1][0] - samples[0][0]
    least = max(least_bytes, LEAST_SHARE * last, (_NUM_PARTS - 1) * beside)
    return per_step if is_steady and per_step * num_steps >= least else 0.0


def is_higher_than_before(samples: Sequence[tuple[int, float]], highest: float | None) -> bool:
    """Whether at least half of their growth goes beyond the ``highest`` of earlier steps.

    What is filled and emptied again, as a buffer at each evaluation, only comes to where it was.
    """
    part = len(samples) // _NUM_PARTS
    first, last = (median(b for _, b in some) for some in (samples[:part], samples[-part:]))
    return highest is None or last - highest >= (last - first) / 2


def urgent_bytes_per_step(
    samples: Sequence[tuple[int, float]], before: Sequence[tuple[int, float]]
) -> float:
    """Of the newest 16 steps, where they rise steadily to where it has not been; else 0.0.

    ``before``: of earlier steps. What is taken and given back again comes to where it was.
    """
    newest = samples[-URGENT_STEPS:]
    per_step = steady_bytes_per_step(newest, min_steps=URGENT_STEPS)
    if not per_step:
        return 0.0
    first, last = newest[0], newest[-1]
    highest = max((b for step, b in (*samples, *before) if step < first[0]), default=0.0)
    return per_step if last[1] - highest >= (last[1] - first[1]) / 2 else 0.0


class Begin(NamedTuple):
    """Where growth began; ``is_earlier``: it may be earlier, there are no samples from before."""

    step: int
    is_earlier: bool

    def __str__(self) -> str:
        return f"{self.step} or earlier" if self.is_earlier else str(self.step)


Begins = dict[tuple[str, str], Begin]  # by role and cause, of what is found


def begin_of_growth(samples: Iterable[tuple[int, float]], bytes_per_step: float) -> Begin:
    """The step from which memory rises by ``bytes_per_step``; before it the level is constant.

    Of all samples the one at which "flat, then a line of this slope" deviates least. ``samples`` in
    any order, at least one.
    """
    points = sorted(dict(samples).items())
    begin = min(points, key=lambda point: _deviation(points, point[0], bytes_per_step))[0]
    is_first = begin == points[0][0]
    return Begin(begin, is_earlier=is_first and begin > _FIRST_STEPS)


def seconds_of(facts: MemoryFacts, step: int, now_seconds: float) -> float:
    """Unix time of a step that is over, by what steps take: it may not be stored any more."""
    num_steps = max(0, (facts.step or step) - step)
    return now_seconds - num_steps * (facts.step_seconds or 0.0)


def _deviation(points: Sequence[tuple[int, float]], begin: int, bytes_per_step: float) -> float:
    levels = [value - bytes_per_step * max(0, step - begin) for step, value in points]
    level = median(levels)
    return sum(abs(value - level) for value in levels)


def bytes_text(num_bytes: float) -> str:
    """As in "20.1 MiB", "8 GiB"."""
    unit, name = (_GIB, "GiB") if abs(num_bytes) >= _GIB else (_MIB, "MiB")
    return f"{num_bytes / unit:.3g} {name}"
