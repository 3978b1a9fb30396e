"""Page faults: memory that a process returns to the kernel and takes again, in every step.

Whether glibc's allocator does so depends on the order of a process' allocations. Of equal ranks of
a healthy job some have thousands of faults in a step and some have none, for minutes: 2,500 of
2.7 us, 17 % more CPU time, on DDP over gloo (docs/benchmarks.md, 2026-11-26). Such a rank is last
and computes no more than the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dfx_agent.facts.steps import RankStep, Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.busy_host import Late, Reason
from dfx_agent.judge.straggler.excess import middle_mean, others_median

_EXPLAINED_SHARE = 0.5
# A fault of a 4 KiB page takes 0.5 to 3 us. Time in the kernel beyond this is for something else.
_MOST_SECONDS = 1e-5


def without_faults(step: Step) -> Step:
    """The same with the CPU time of each rank that is not for page faults."""
    each = _seconds_per_fault([step])
    if not each:
        return step
    ranks = {
        rank: of if of.busy_seconds is None else replace(of, busy_seconds=_net(of, each))
        for rank, of in step.ranks.items()
    }
    return replace(step, ranks=ranks)


def faulting(late: Late) -> Reason | None:
    """Where page faults take most of the excess; None where they do not or are not counted."""
    each = _seconds_per_fault(late.steps)
    processor = [had for s in late.steps if (had := s.ranks[late.rank].processor) is not None]
    ran_ns, delayed_ns = sum(h.ran_ns for h in processor), sum(h.delayed_ns for h in processor)
    if not each or not ran_ns:
        return None
    # who waits for a CPU half of the time takes twice as long for them
    stretch = (ran_ns + delayed_ns) / ran_ns
    rows = [{rank: _num_faults(of) for rank, of in s.ranks.items()} for s in late.steps]
    own = middle_mean(row[late.rank] for row in rows)
    others = middle_mean(others_median(row, late.rank) for row in rows)
    if (own - others) * each * stretch < _EXPLAINED_SHARE * late.excess_seconds:
        return None
    return late.told(sentences.PAGE_FAULTS, num=f"{own:,.0f}", others=f"{others:,.0f}")


def _seconds_per_fault(steps: Sequence[Step]) -> float:
    """At most: all that the ranks did in the kernel, by all their faults; 0 where none is known."""
    times = [had for s in steps for of in s.ranks.values() if (had := of.processor) is not None]
    num_faults = sum(had.num_faults for had in times)
    if not num_faults:
        return 0.0
    return min(_MOST_SECONDS, sum(had.system_ns for had in times) / 1e9 / num_faults)


def _net(of: RankStep, each: float) -> float:
    return max(0.0, (of.busy_seconds or 0.0) - each * _num_faults(of))


def _num_faults(of: RankStep) -> float:
    return of.processor.num_faults if of.processor is not None else 0.0
