"""Whether the host explains what a rank took, because it let ranks wait for a CPU.

The kernel counts how long a thread was runnable and had no CPU. Where more threads are runnable
than there are CPUs, the scheduler decides how long a step takes, and luck lasts for many steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from dfx_agent.base.text import Sentence, capitalized
from dfx_agent.facts.processor import SchedTimes
from dfx_agent.facts.steps import Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.excess import middle_mean, others_median
from dfx_agent.judge.words import labels_text, percent

# of the time in which a rank is runnable: below, "no rank is slow" cannot be said
LEAST_SHARE = 0.5
# a wait for a CPU that is shorter than this, of a step, delays nobody
_SMALLEST_DELAY = 0.05
_EXPLAINED_SHARE = 0.5
# threads per CPU above which who sleeps may wait for somebody without a CPU
_ALIKE_SHARE = 0.03  # of CPU time while runnable: a smaller difference says nothing of a rank
_CROWD = 4.0
_SPANS = 5, 20  # steps: the newest, and at most


class Reason(NamedTuple):
    """Why nobody is blamed: ``text`` is the sentence with its values."""

    sentence: Sentence
    text: str


class Late(NamedTuple):
    """A rank that takes ``excess_seconds`` longer in each of these steps than the others."""

    steps: Sequence[Step]
    rank: str
    excess_seconds: float
    step_seconds: float

    def told(self, sentence: Sentence, **words: str) -> Reason:
        rank, excess = labels_text([self.rank]), percent(self.excess_seconds / self.step_seconds)
        return Reason(sentence, sentence(ranks=rank, excess=excess, **words))


def starved_ranks(steps: Sequence[Step], step_seconds: float) -> Reason | None:
    """Ranks that had no CPU for most of the time in which they were runnable."""
    for num_steps in _SPANS:
        newest = steps[-num_steps:]
        times = _sums(newest)
        shares = {rank: each.share for rank, each in times.items() if each.share is not None}
        least_ns = _SMALLEST_DELAY * step_seconds * len(newest) * 1e9
        starved = [
            rank
            for rank, share in shares.items()
            if share < LEAST_SHARE and times[rank].delayed_ns >= least_ns
        ]
        if starved:
            return _starved(min(starved, key=shares.__getitem__), shares)
    return None


def _starved(worst: str, shares: Mapping[str, float]) -> Reason:
    others = sorted(share for rank, share in shares.items() if rank != worst)
    if others and others[0] - shares[worst] < _ALIKE_SHARE:
        text = sentences.BUSY_FOR_ALL(share=percent(fmean(shares.values())))
        return Reason(sentences.BUSY_FOR_ALL, text)
    span = dict.fromkeys(f"{100 * share:.0f}" for share in (*others[:1], *others[-1:]))
    text = sentences.BUSY_HOST(
        ranks=capitalized(labels_text([worst])),
        share=percent(shares[worst]),
        others=f", the other ranks {' to '.join(span)} %" if others else "",
    )
    return Reason(sentences.BUSY_HOST, text)


def delayed(late: Late) -> Reason | None:
    """Where the rank waited for a CPU during most of the excess."""
    rows = [
        {label: times.delayed_ns / 1e9 for label, times in row.items()} for row in _rows(late.steps)
    ]
    if not rows:
        return None
    more = middle_mean(row[late.rank] - others_median(row, late.rank) for row in rows)
    if more < _EXPLAINED_SHARE * late.excess_seconds:
        return None
    share = percent(min(1.0, more / late.excess_seconds))
    return late.told(sentences.WAITED_FOR_CPU, delayed=share)


def asleep(late: Late) -> Reason | None:
    """Where the rank slept during most of the excess, on a host without room.

    What it slept for (a server, a loader, a thread of its own) shares the CPUs of the host, and
    waited for them at least as long as the rank's own thread did.
    """
    rows = _rows(late.steps)
    if not rows:
        return None
    ran = [{label: times.ran_ns / 1e9 for label, times in row.items()} for row in rows]
    more = (row[late.rank] - others_median(row, late.rank) for row in ran)
    computed = max(0.0, middle_mean(more))
    if computed >= _EXPLAINED_SHARE * late.excess_seconds:
        return None
    crowds = [crowd for row in rows if (crowd := row[late.rank].crowd) is not None]
    if crowds and fmean(crowds) >= _CROWD:
        why = f"this machine has {fmean(crowds):.0f} threads per CPU"
        return late.told(sentences.SLEPT_ON_BUSY_HOST, why=why)
    waited = fmean(row[late.rank].delayed_ns / 1e9 for row in rows)
    if waited < _EXPLAINED_SHARE * (late.excess_seconds - computed):
        return None
    why = f"its own thread waits for a CPU for {percent(waited / late.step_seconds)} of a step"
    return late.told(sentences.SLEPT_ON_BUSY_HOST, why=why)


def _rows(steps: Sequence[Step]) -> list[dict[str, SchedTimes]]:
    """Of the steps in which the kernel counted every rank."""
    rows = [{label: of.processor for label, of in step.ranks.items()} for step in steps]
    known = [{label: times for label, times in row.items() if times is not None} for row in rows]
    return [row for row, of_all in zip(known, rows, strict=True) if len(row) == len(of_all)]


def _sums(steps: Sequence[Step]) -> dict[str, SchedTimes]:
    """By rank, of those that the kernel counted in each of these steps."""
    found: dict[str, SchedTimes] = {}
    for rank in steps[-1].ranks:
        times = [step.ranks[rank].processor for step in steps if rank in step.ranks]
        known = [each for each in times if each is not None]
        if known and len(known) == len(times):
            found[rank] = SchedTimes(sum(k.ran_ns for k in known), sum(k.delayed_ns for k in known))
    return found
