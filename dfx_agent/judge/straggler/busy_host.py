"""Whether the host explains what a rank took, because it let ranks wait for a CPU.

The kernel counts how long a thread was runnable and had no CPU. Where more threads are runnable
than there are CPUs, the scheduler decides how long a step takes, and luck lasts for many steps.

A process may return memory to the kernel, and get it back by page faults, in every step. Whether
glibc's allocator does so depends on the order in which a process allocates. Some ranks of a
healthy job have thousands of faults in a step and their equals have none, for minutes: 2,500 faults
of 2.7 us, 17 % more CPU time, with DDP over gloo (docs/benchmarks.md, 2026-11-26). Such a rank is
last, but does not compute more than the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from dfx_agent.base.text import Sentence, capitalized
from dfx_agent.facts.processor import SchedTimes
from dfx_agent.facts.steps import RankStep, Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.excess import middle_mean, others_median
from dfx_agent.judge.words import labels_text, percent

_EXPLAINED_BY_FAULTS = 0.5
# A fault of a 4 KiB page takes 0.5 to 3 us; more kernel time has another cause.
_MOST_SECONDS = 1e-5
# of the time in which a rank is runnable: below, "no rank is slow" cannot be said
LEAST_SHARE = 0.5
# a wait for a CPU that is shorter than this, of a step, delays nobody
_SMALLEST_DELAY = 0.05
_EXPLAINED_SHARE = 0.5
_ALIKE_SHARE = 0.03  # of CPU time while runnable: a smaller difference says nothing of a rank
# threads per CPU above which who sleeps may wait for somebody without a CPU
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


def without_faults(step: Step) -> Step:
    """The step with the CPU time that each rank did not use for page faults."""
    fault_seconds = _seconds_per_fault([step])
    if not fault_seconds:
        return step
    return replace(
        step,
        ranks={
            rank: _without_faults(rank_step, fault_seconds)
            for rank, rank_step in step.ranks.items()
        },
    )


def _without_faults(rank_step: RankStep, fault_seconds: float) -> RankStep:
    if rank_step.busy_seconds is None:
        return rank_step
    busy_seconds = max(0.0, rank_step.busy_seconds - fault_seconds * _num_faults(rank_step))
    return replace(rank_step, busy_seconds=busy_seconds)


def faulting(late: Late) -> Reason | None:
    """The reason if page faults explain at least half of the excess, else None."""
    fault_seconds = _seconds_per_fault(late.steps)
    times = [times for s in late.steps if (times := s.ranks[late.rank].processor) is not None]
    ran_ns, delayed_ns = sum(t.ran_ns for t in times), sum(t.delayed_ns for t in times)
    if not fault_seconds or not ran_ns:
        return None
    rows = [{rank: _num_faults(s.ranks[rank]) for rank in s.ranks} for s in late.steps]
    num_faults = middle_mean(row[late.rank] for row in rows)
    others = middle_mean(others_median(row, late.rank) for row in rows)
    # a rank that waits for a CPU half of the time needs twice as long for its faults
    stretch = (ran_ns + delayed_ns) / ran_ns
    explained_seconds = (num_faults - others) * fault_seconds * stretch
    if explained_seconds < _EXPLAINED_BY_FAULTS * late.excess_seconds:
        return None
    return late.told(sentences.PAGE_FAULTS, num=f"{num_faults:,.0f}", others=f"{others:,.0f}")


def _seconds_per_fault(steps: Sequence[Step]) -> float:
    """Upper bound: all kernel time of all ranks, divided by their faults; 0 without faults."""
    ranks = [rank_step for step in steps for rank_step in step.ranks.values()]
    times = [rank_step.processor for rank_step in ranks if rank_step.processor is not None]
    num_faults = sum(t.num_faults for t in times)
    if not num_faults:
        return 0.0
    return min(_MOST_SECONDS, sum(t.system_ns for t in times) / 1e9 / num_faults)


def _num_faults(rank_step: RankStep) -> float:
    return rank_step.processor.num_faults if rank_step.processor is not None else 0.0
