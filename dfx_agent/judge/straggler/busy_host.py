"""Checks whether the host explains why a rank was slow: lack of CPUs, or page faults.

The kernel counts how long a thread was runnable without a CPU. If there are more runnable threads
than CPUs, the scheduler decides how long a step takes, and a rank can be unlucky for many steps.

A process may return memory to the kernel, and get it back by page faults, in every step. Whether
glibc's allocator does so depends on the order in which a process allocates. Some ranks of a
healthy job have thousands of faults in a step and their peers have none, for minutes: 2,500 faults
of 2.7 us, 17 % more CPU time, with DDP over gloo (docs/benchmarks.md, 2026-11-26). Such a rank is
last, but does not compute more than the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from dfx_agent.base.text import Sentence, capitalized
from dfx_agent.facts.steps import RankStep, SchedTimes, Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.excess import middle_mean, others_median
from dfx_agent.judge.words import labels_text, percent

_EXPLAINED_BY_FAULTS = 0.5
# A fault of a 4 KiB page takes 0.5 to 3 us; more kernel time has another cause.
_MOST_SECONDS = 1e-5
# CPU time / runnable time of a rank; below this, "no rank is slow" cannot be judged
LEAST_SHARE = 0.5
# share of a step; a shorter wait for a CPU delays no rank
_SMALLEST_DELAY = 0.05
_EXPLAINED_SHARE = 0.5
_EQUAL_SHARE = 0.03  # a smaller difference of the CPU share of two ranks has no meaning
# threads per CPU above which a sleeping rank may wait for a thread that has no CPU
_CROWD = 4.0
_SPANS = 5, 20  # numbers of steps that are checked


class Reason(NamedTuple):
    """Why no rank is blamed."""

    sentence: Sentence
    text: str
    """The sentence with its values."""


class Late(NamedTuple):
    """A rank that takes longer than the other ranks in each of these steps."""

    steps: Sequence[Step]
    rank: str
    excess_seconds: float
    """How much longer, per step."""
    step_seconds: float

    def reason(self, sentence: Sentence, **words: str) -> Reason:
        """The reason with this sentence about the rank."""
        rank, excess = labels_text([self.rank]), percent(self.excess_seconds / self.step_seconds)
        return Reason(sentence, sentence(ranks=rank, excess=excess, **words))


def starved_ranks(steps: Sequence[Step], step_seconds: float) -> Reason | None:
    """Ranks that had no CPU for most of the time in which they were runnable."""
    for num_steps in _SPANS:
        recent = steps[-num_steps:]
        times = _sums(recent)
        shares = {rank: total.share for rank, total in times.items() if total.share is not None}
        least_ns = _SMALLEST_DELAY * step_seconds * len(recent) * 1e9
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
    if others and others[0] - shares[worst] < _EQUAL_SHARE:
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
    """The reason if the rank waited for a CPU during most of its excess, else None."""
    rows = [
        {label: times.delayed_ns / 1e9 for label, times in row.items()} for row in _rows(late.steps)
    ]
    if not rows:
        return None
    more = middle_mean(row[late.rank] - others_median(row, late.rank) for row in rows)
    if more < _EXPLAINED_SHARE * late.excess_seconds:
        return None
    share = percent(min(1.0, more / late.excess_seconds))
    return late.reason(sentences.WAITED_FOR_CPU, delayed=share)


def asleep(late: Late) -> Reason | None:
    """The reason if the rank slept during most of its excess, on a busy host; else None.

    A rank sleeps while it waits for a server, a loader or another thread. These share the CPUs of
    the host, so they waited for a CPU at least as long as the thread of the rank.
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
        return late.reason(sentences.SLEPT_ON_BUSY_HOST, why=why)
    waited = fmean(row[late.rank].delayed_ns / 1e9 for row in rows)
    if waited < _EXPLAINED_SHARE * (late.excess_seconds - computed):
        return None
    why = f"its own thread waits for a CPU for {percent(waited / late.step_seconds)} of a step"
    return late.reason(sentences.SLEPT_ON_BUSY_HOST, why=why)


def _rows(steps: Sequence[Step]) -> list[dict[str, SchedTimes]]:
    """Kernel times of the ranks by step, for steps in which they are known for all ranks."""
    rows = []
    for step in steps:
        row = {label: rank_step.processor for label, rank_step in step.ranks.items()}
        complete = {label: times for label, times in row.items() if times is not None}
        if len(complete) == len(row):
            rows.append(complete)
    return rows


def _sums(steps: Sequence[Step]) -> dict[str, SchedTimes]:
    """Sum of the kernel times of each rank for which they are known in all these steps."""
    sums: dict[str, SchedTimes] = {}
    for rank in steps[-1].ranks:
        times = [step.ranks[rank].processor for step in steps if rank in step.ranks]
        present = [step_times for step_times in times if step_times is not None]
        if present and len(present) == len(times):
            ran_ns = sum(step_times.ran_ns for step_times in present)
            sums[rank] = SchedTimes(ran_ns, sum(step_times.delayed_ns for step_times in present))
    return sums


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
    return late.reason(sentences.PAGE_FAULTS, num=f"{num_faults:,.0f}", others=f"{others:,.0f}")


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
