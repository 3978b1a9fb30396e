"""Whether the host was too busy with others to tell which rank is slow.

Where more wants to run than there are processors, whose turn it is decides how long a step takes,
and luck lasts for many steps. The kernel counts how long a thread could run and was not let.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from dfx_agent.durations import seconds_text
from dfx_agent.facts.processor import SchedTimes
from dfx_agent.facts.steps import Step
from dfx_agent.judge.straggler.excess import middle_mean, others_median

# of a processor while it could run: with less, a rank's pace is not its own
LEAST_SHARE = 0.5
# a wait for a processor that is shorter than this, of a step, holds nobody up
_SMALLEST_DELAY = 0.05
_EXPLAINED_SHARE = 0.5
# threads for each processor above which who sleeps may wait for somebody who has no turn
_CROWD = 4.0
_SPANS = 5, 20  # steps: what is judged newest, and at most


def reason_to_abstain(steps: Sequence[Step], step_seconds: float) -> str:
    """Why no rank can be blamed for what it took; "" where the host let them all run."""
    for num_steps in _SPANS:
        had = _sums(steps[-num_steps:])
        shares = {rank: times.share for rank, times in had.items() if times.share is not None}
        starved = [
            rank
            for rank, share in shares.items()
            if share < LEAST_SHARE
            and had[rank].delayed_ns / 1e9
            >= _SMALLEST_DELAY * step_seconds * len(steps[-num_steps:])
        ]
        if starved:
            worst = min(starved, key=lambda rank: shares[rank])
            others = [f"{share:.2g}" for rank, share in shares.items() if rank != worst]
            span = " to ".join(dict.fromkeys((min(others), max(others)))) if others else ""
            beside = f", the others {span}" if others else ""
            return (
                f"this host's processors were busy with others: rank {worst} got "
                f"{shares[worst]:.2g} of one while it could run{beside}"
            )
    return ""


def explained(steps: Sequence[Step], rank: str, excess_seconds: float) -> str:
    """Why this excess is not the rank's own; "" where it was not refused a processor for it."""
    had = [{label: of.processor for label, of in step.ranks.items()} for step in steps]
    delays = [
        {label: times.delayed_ns / 1e9 for label, times in row.items() if times is not None}
        for row in had
        if None not in row.values()
    ]
    if not delays:
        return ""
    more = middle_mean(row[rank] - others_median(row, rank) for row in delays)
    if more < _EXPLAINED_SHARE * excess_seconds:
        return ""
    own = fmean(row[rank] for row in delays)
    return (
        f"this host's processors were busy with others: rank {rank} took "
        f"{seconds_text(excess_seconds)} longer a step, and waited {seconds_text(own)} for a "
        f"processor, {seconds_text(more)} more than the others"
    )


def overshadowed(steps: Sequence[Step], rank: str, excess_seconds: float) -> str:
    """Why an excess in which the rank slept is not told; "" where it computed, or had room.

    What it slept for (a server, a loader, a thread of its own) shares the host's processors, and
    waited for them at least as long as the rank's own thread did.
    """
    had = [{label: of.processor for label, of in step.ranks.items()} for step in steps]
    known = [{label: t for label, t in row.items() if t is not None} for row in had]
    whole = [row for row, all_of in zip(known, had, strict=True) if len(row) == len(all_of)]
    if not whole:
        return ""
    ran = [{label: times.ran_ns / 1e9 for label, times in row.items()} for row in whole]
    computed = max(0.0, middle_mean(row[rank] - others_median(row, rank) for row in ran))
    if computed >= _EXPLAINED_SHARE * excess_seconds:
        return ""
    told = (
        f"rank {rank} took {seconds_text(excess_seconds)} longer a step and computed "
        f"{seconds_text(computed)} of it; what it slept for may have had no turn"
    )
    seen = [crowd for row in whole if (crowd := row[rank].crowd) is not None]
    if seen and fmean(seen) >= _CROWD:
        return f"{fmean(seen):.0f} threads shared each processor of this host: {told}"
    delayed = fmean(row[rank].delayed_ns / 1e9 for row in whole)
    if delayed < _EXPLAINED_SHARE * (excess_seconds - computed):
        return ""
    return (
        f"this host's processors were busy with others, rank {rank} waited "
        f"{seconds_text(delayed)} a step for one: {told}"
    )


def _sums(steps: Sequence[Step]) -> dict[str, SchedTimes]:
    """By rank, of those that the kernel counted in each of these steps."""
    found: dict[str, SchedTimes] = {}
    for rank in steps[-1].ranks:
        times = [step.ranks[rank].processor for step in steps if rank in step.ranks]
        known = [each for each in times if each is not None]
        if known and len(known) == len(times):
            found[rank] = SchedTimes(sum(k.ran_ns for k in known), sum(k.delayed_ns for k in known))
    return found
