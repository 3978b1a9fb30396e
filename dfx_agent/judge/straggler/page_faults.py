"""Page faults of a process that returns memory to the kernel, and gets it back, in every step.

Whether glibc's allocator does so depends on the order in which a process allocates. Some ranks of a
healthy job have thousands of faults in a step and their equals have none, for minutes: 2,500 faults
of 2.7 us, 17 % more CPU time, with DDP over gloo (docs/benchmarks.md, 2026-11-26). Such a rank is
last, but does not compute more than the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dfx_agent.facts.steps import RankStep, Step
from dfx_agent.judge.straggler import sentences
from dfx_agent.judge.straggler.busy_host import Late, Reason
from dfx_agent.judge.straggler.excess import middle_mean, others_median

_EXPLAINED_SHARE = 0.5
# A fault of a 4 KiB page takes 0.5 to 3 us; more kernel time has another cause.
_MOST_SECONDS = 1e-5


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
    if explained_seconds < _EXPLAINED_SHARE * late.excess_seconds:
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
