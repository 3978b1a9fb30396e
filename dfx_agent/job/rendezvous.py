"""A job whose ranks wait for others that have not come: they are in rendezvous.

It is said after 45 s. A node may take minutes to come, so it is a hang only after 300 s, and only
where a stack shows that a rank is in torch's rendezvous.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dfx_agent.durations import seconds_text
from dfx_agent.facts.rank import RankFacts
from dfx_agent.judge.words import stack_lines
from dfx_agent.snapshot import Verdict

SAID_SECONDS, FOUND_SECONDS = 45.0, 300.0
CAUSE = "rendezvous"

_RENDEZVOUS = re.compile(
    r"torch/distributed/"
    r"(rendezvous\.py|elastic/rendezvous/|distributed_c10d\.py init_process_group)"
)


def rendezvous_verdict(role: str, ranks: Sequence[RankFacts], missing: str) -> Verdict | None:
    """``missing``: who is not here, in words; None where the ranks have met, or may yet soon."""
    living = [rank for rank in ranks if rank.is_living]
    if not missing or not living or any(map(_has_met, living)):
        return None
    since_ns = max(rank.begin_ns for rank in living)
    seconds = (living[0].now_ns - since_ns) / 1e9
    if seconds < SAID_SECONDS:
        return None
    waiting = [rank for rank in living if _is_in_rendezvous(rank)]
    does = "waits in rendezvous" if waiting else "has not begun"
    is_found = bool(waiting) and seconds >= FOUND_SECONDS
    return Verdict(
        kind="hang",
        state="found" if is_found else "insufficient evidence",
        role=role,
        summary=f"the job {does} for {seconds_text(seconds)}: {missing}",
        cause=CAUSE if is_found else "",
        since_seconds=living[0].epoch_seconds(since_ns),
        evidence=tuple(stack_lines(living)),
    )


def _has_met(rank: RankFacts) -> bool:
    return rank.has_groups or bool(rank.reached) or rank.step is not None or rank.num_steps > 0


def _is_in_rendezvous(rank: RankFacts) -> bool:
    main = rank.stacks.main if rank.stacks else None
    frames = main.frames if main else ()
    return any(_RENDEZVOUS.search(f"{frame.file} {frame.function}") for frame in frames)
