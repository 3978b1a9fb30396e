"""Finds the rank that two independent witnesses name: the waits of the others, and CPU time.

On a host with more runnable threads than CPUs the duration of a step says little about a rank. Two
counts still do: how often a rank waited least (it was last), and how often its training thread
used most CPU time. Each count is compared with equal ranks (binomial tail). A rank that is last by
bad luck, or because it sleeps, does not use most CPU time. CPU time for page faults is not counted.
A rank that computes more for the whole job, but is not last, delays no rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from math import comb, prod
from statistics import median
from typing import NamedTuple

from dfx_agent.facts.short_steps import ShortSteps
from dfx_agent.facts.steps import RankStep, Step
from dfx_agent.judge.straggler.busy_host import without_faults
from dfx_agent.judge.straggler.excess import middle_mean, others_median

LOOK_SECONDS = 1.0  # shorter steps are merged, because bad luck lasts for less than this
NUM_LOOKS = 48  # merged steps that are stored
_WINDOWS = (48, 32, 20, 12)
_NUM_LATEST = 5
_MIN_EFFECT = 0.5  # share of the excess that the other ranks must have waited


class _Limits(NamedTuple):
    """Thresholds of the two witnesses.

    On a busy host CPU time is the stronger witness, otherwise the waits are. A strong witness
    compensates for a weaker one, but none is enough alone.
    """

    p_value: float
    """Largest chance of each witness."""
    p_both: float
    """Largest product of both chances."""
    share: float
    """Smallest excess of work and of CPU time, as a share."""


_TO_ACCUSE = _Limits(1e-3, 1e-10, 0.10)
_TO_STAY = _Limits(1e-1, 1e-4, 0.05)
_MIN_CPU_SHARE = 0.02  # share of a step; a smaller excess of CPU time delays no rank


class Looks:
    """The latest steps of the same ranks. Steps below a second are merged ("looks").

    CPU time for page faults is removed.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._short = ShortSteps(LOOK_SECONDS)
        self._looks: deque[Step] = deque(maxlen=NUM_LOOKS)
        self._latest: Step | None = None

    @classmethod
    def from_steps(cls, steps: Sequence[Step]) -> Sequence[Step]:
        """The looks of these steps alone."""
        return cls().add(steps)

    def add(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Add the new ones of ``steps`` (oldest first).

        Returns all looks. A restart clears them.
        """
        if self._latest is not None and (not steps or steps[-1].step < self._latest.step):
            self._clear()
        for step in steps:
            if self._latest is None or step.step > self._latest.step:
                self._take(step)
        return tuple(self._looks)

    def _take(self, step: Step) -> None:
        if self._looks and self._looks[-1].ranks.keys() != step.ranks.keys():
            self._looks.clear()
        look = self._short.take(step)
        self._looks += [without_faults(look)] if look is not None else []
        self._latest = step


class Testimony(NamedTuple):
    """Evidence of both witnesses against one rank; seconds are per step."""

    rank: str
    num_looks: int
    num_last: int
    """Looks in which the rank waited least."""
    num_busiest: int
    """Looks in which it used most CPU time."""
    excess_seconds: float
    lost_seconds: float
    more_cpu_ratio: float
    """CPU time beyond the median of the other ranks, as a share of it."""


def testimonies(looks: Sequence[Step], named: Collection[str]) -> list[Testimony]:
    """Ranks that both witnesses name, the largest excess first.

    ``looks``: steps of the same ranks, each of a second or more, oldest first. ``named``: ranks
    that are accused already and need less to stay accused.
    """
    looks = [
        look
        for look in looks
        if all(rank_step.busy_seconds is not None for rank_step in look.ranks.values())
    ]
    last = [min(look.ranks, key=lambda rank: look.ranks[rank].waited_seconds) for look in looks]
    busiest = [max(look.ranks, key=lambda rank: _cpu(look.ranks[rank])) for look in looks]
    found = [
        testimony
        for rank in dict.fromkeys(last)
        if (testimony := _testimony(looks, last, busiest, rank, is_named=rank in named))
    ]
    return sorted(found, key=lambda testimony: -testimony.excess_seconds)


def _testimony(
    looks: Sequence[Step], last: Sequence[str], busiest: Sequence[str], rank: str, *, is_named: bool
) -> Testimony | None:
    """The testimony in the longest window in which both witnesses name the rank; else None."""
    limits = _TO_STAY if is_named else _TO_ACCUSE
    for num in _WINDOWS:
        if num > len(looks):
            continue
        counts = last[-num:].count(rank), busiest[-num:].count(rank)
        chances = [p_value(count, num, len(looks[-1].ranks)) for count in counts]
        if max(chances) >= limits.p_value or prod(chances) >= limits.p_both:
            continue
        testimony = _effect(looks[-num:], rank, *counts)
        if _is_large(testimony, looks, limits):
            return testimony
    return None


@lru_cache(maxsize=4096)
def p_value(count: int, num_looks: int, num_ranks: int) -> float:
    """Chance that any of equal ranks is named ``count`` times or more (binomial, Bonferroni)."""
    q = 1 / num_ranks
    tail = sum(
        comb(num_looks, i) * q**i * (1 - q) ** (num_looks - i) for i in range(count, num_looks + 1)
    )
    return min(1.0, num_ranks * tail)


def _effect(looks: Sequence[Step], rank: str, num_last: int, num_busiest: int) -> Testimony:
    work = [work_excess(look, rank) for look in looks]
    lost = [
        -_beyond({label: rank_step.waited_seconds for label, rank_step in look.ranks.items()}, rank)
        for look in looks
    ]
    more = [_cpu_ratio(look, rank) for look in looks]
    return Testimony(
        rank, len(looks), num_last, num_busiest, middle_mean(work), middle_mean(lost), median(more)
    )


def _is_large(testimony: Testimony, looks: Sequence[Step], limits: _Limits) -> bool:
    """Whether the effect is large in the window and in the latest looks (not recovered)."""
    rank, latest = testimony.rank, looks[-_NUM_LATEST:]
    step_seconds = median(
        rank_step.wall_seconds for look in latest for rank_step in look.ranks.values()
    )
    cpu = median(_beyond(_cpu_by_rank(look), rank) for look in latest)
    lately = median(_cpu_ratio(look, rank) for look in latest)
    return (
        testimony.excess_seconds >= limits.share * step_seconds
        and testimony.lost_seconds >= _MIN_EFFECT * testimony.excess_seconds
        and min(testimony.more_cpu_ratio, lately) >= limits.share
        and cpu >= _MIN_CPU_SHARE * step_seconds
    )


def work_excess(look: Step, rank: str) -> float:
    """Work of a rank beyond the median of the other ranks, in seconds."""
    work = {label: rank_step.work_seconds for label, rank_step in look.ranks.items()}
    return _beyond(work, rank)


def _cpu_ratio(look: Step, rank: str) -> float:
    """CPU time beyond the median of the other ranks, as a share of it; 0 if they use none."""
    usual = others_median(_cpu_by_rank(look), rank)
    return _cpu(look.ranks[rank]) / usual - 1 if usual > 0 else 0.0


def _cpu_by_rank(look: Step) -> dict[str, float]:
    return {label: _cpu(rank_step) for label, rank_step in look.ranks.items()}


def _cpu(rank_step: RankStep) -> float:
    return rank_step.busy_seconds or 0.0


def _beyond(seconds: Mapping[str, float], rank: str) -> float:
    return seconds[rank] - others_median(seconds, rank)
