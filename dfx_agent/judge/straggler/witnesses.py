"""Finds the rank that two independent witnesses name: the waits of the others, and CPU time.

On a host with more runnable threads than CPUs the duration of a step says little about a rank. Two
counts still do: how often a rank waited least (it was last), and how often its training thread
used most CPU time. Each is tested against equal ranks with a binomial tail. A rank that is last
because of luck, or because it sleeps, does not use most CPU time, and that of page faults is not
counted. A rank that computes more for
the whole job, but is not last, delays nobody.
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

LOOK_SECONDS = 1.0  # luck lasts for less
NUM_LOOKS = 48  # retained; an accusation needs at most all of them
_WINDOWS = (48, 32, 20, 12)
_NUM_LATEST = 5
_MIN_EFFECT = 0.5  # of the excess of work: the others must have waited for it


class _Limits(NamedTuple):
    """``p_value`` of each witness, and of both; ``share``: work and CPU time beyond the others'.

    On a full host CPU time is the sharper witness, on a host with room the waits are: a strong one
    makes up for a weaker one, but none is enough alone.
    """

    p_value: float
    p_both: float
    share: float


_TO_ACCUSE = _Limits(1e-3, 1e-10, 0.10)
_TO_STAY = _Limits(1e-1, 1e-4, 0.05)
_MIN_CPU_SHARE = 0.02  # of a step: more CPU time than the others by less delays nobody


class Looks:
    """The latest steps of the same ranks, those shorter than a second taken together.

    Their CPU time is without that of page faults.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._short = ShortSteps(LOOK_SECONDS)
        self._looks: deque[Step] = deque(maxlen=NUM_LOOKS)
        self._latest: Step | None = None

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Sequence[Step]:
        return cls().add(steps)

    def add(self, steps: Sequence[Step]) -> Sequence[Step]:
        """With those of ``steps`` (oldest first) that are new; a restart begins again."""
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
    """What both witnesses say about one rank over the latest ``num_looks``; seconds per step."""

    rank: str
    num_looks: int
    num_last: int
    num_busiest: int
    excess_seconds: float
    lost_seconds: float
    more_cpu_ratio: float


def testimonies(looks: Sequence[Step], named: Collection[str]) -> list[Testimony]:
    """Ranks that both witnesses name, the largest excess first.

    ``looks``: steps of the same ranks, each of a second or more, oldest first. ``named``: ranks
    that are accused already and need less to stay accused.
    """
    looks = [s for s in looks if all(of.busy_seconds is not None for of in s.ranks.values())]
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
    """Of the longest window in which both witnesses name this rank, and it delays the others."""
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
    lost = [-_beyond({label: of.waited_seconds for label, of in s.ranks.items()}, rank)
            for s in looks]  # fmt: skip
    more = [_cpu_ratio(look, rank) for look in looks]
    return Testimony(
        rank, len(looks), num_last, num_busiest, middle_mean(work), middle_mean(lost), median(more)
    )


def _is_large(testimony: Testimony, looks: Sequence[Step], limits: _Limits) -> bool:
    """In the window as a whole, and lately: a rank that has recovered is not accused for long."""
    rank, latest = testimony.rank, looks[-_NUM_LATEST:]
    step_seconds = median(of.wall_seconds for look in latest for of in look.ranks.values())
    cpu = median(_beyond({r: _cpu(of) for r, of in look.ranks.items()}, rank) for look in latest)
    lately = median(_cpu_ratio(look, rank) for look in latest)
    return (
        testimony.excess_seconds >= limits.share * step_seconds
        and testimony.lost_seconds >= _MIN_EFFECT * testimony.excess_seconds
        and min(testimony.more_cpu_ratio, lately) >= limits.share
        and cpu >= _MIN_CPU_SHARE * step_seconds
    )


def work_excess(look: Step, rank: str) -> float:
    """Seconds of work beyond the median of the others."""
    return _beyond({label: of.work_seconds for label, of in look.ranks.items()}, rank)


def _cpu_ratio(look: Step, rank: str) -> float:
    """CPU time beyond the median of the others, as a share of it; 0 where they use none."""
    usual = others_median({label: _cpu(of) for label, of in look.ranks.items()}, rank)
    return _cpu(look.ranks[rank]) / usual - 1 if usual > 0 else 0.0


def _cpu(of: RankStep) -> float:
    return of.busy_seconds or 0.0


def _beyond(seconds: Mapping[str, float], rank: str) -> float:
    return seconds[rank] - others_median(seconds, rank)
