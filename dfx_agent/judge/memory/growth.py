"""Whether memory grows step after step, told apart from growth that healthy jobs show.

Caches fill and stop, workers start once, a checkpoint comes and goes: a leak goes on. Of the newest
64 steps the medians of four quarters must rise, each rise at least 0.8 of the mean one, which
must be more than steps differ beside that. Of who leaks already, half of that will do: what leaks
at every tenth step rises by one lump here and by two there.

Who runs out of memory soon is told earlier: by 16 steps that rise so to where it has not been.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

MIN_STEPS, URGENT_STEPS = 48, 16
# smaller growth within the steps looked at is no leak that could be told from chance
LEAST_BYTES = 32 * 2**20
LEAST_SHARE = 0.01
_NUM_PARTS = 4
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


def bytes_text(num_bytes: float) -> str:
    """As in "20.1 MiB", "8 GiB"."""
    unit, name = (_GIB, "GiB") if abs(num_bytes) >= _GIB else (_MIB, "MiB")
    return f"{num_bytes / unit:.3g} {name}"
