"""A rank that cannot end: it frees its process group with the GIL held, and gloo needs the GIL.

The deadlock is torch's own, with or without a guest (docs/decisions/2026-11-22-gloo-ending.md):
the main thread joins gloo's loop in a destructor, that loop frees tensors and asks for the GIL
every 5 ms. Nothing else has this shape for long: a job that saves, evaluates or sleeps joins no
thread of gloo, and a guest can write stacks meanwhile, which it cannot while the GIL is held.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.rank import Joining, RankFacts
from dfx_agent.judge.hang import sentences
from dfx_agent.judge.words import ranks_text

CAUSE = "does not end"
QUIET_SECONDS = 15.0  # by then a guest would have written stacks

_SEEN_SECONDS = 5.0
_GLOO_LOOP = "pt_gloo"  # pt_gloo_runloop: torch names its thread so
_ASKS_PER_SECOND = 20.0  # who waits for the GIL wakes up every 5 ms


class Unended(NamedTuple):
    """A rank in that deadlock."""

    rank: RankFacts
    joining: Joining

    @property
    def seconds(self) -> float:
        """Since it last moved."""
        return self.rank.quiet_seconds

    def __str__(self) -> str:
        return sentences.DOES_NOT_END(
            ranks=capitalized(ranks_text([self.rank])), duration=seconds_text(self.seconds)
        )

    @property
    def action(self) -> str:
        """What ends it."""
        return sentences.DOES_NOT_END.action_text(command=f"kill -9 {self.rank.pid}")

    @property
    def reason(self) -> str:
        loop, _, asks_per_second = self.joining
        return (
            f"pid {self.rank.pid}: its main thread waits for {loop} to end and holds Python's "
            f"lock, which {loop} asks for {asks_per_second:.0f} times a second; seen with torch "
            "2.13 and gloo, not caused by the job's own code"
        )


def unended(ranks: Iterable[RankFacts]) -> list[Unended]:
    """Those of a role, the longest first."""
    found = [Unended(r, r.joining) for r in ranks if r.joining is not None and _does_not_end(r)]
    return sorted(found, key=lambda each: -each.seconds)


def _does_not_end(rank: RankFacts) -> bool:
    joining = rank.joining
    if joining is None or not joining.thread.startswith(_GLOO_LOOP):
        return False
    is_quiet = rank.quiet_seconds >= QUIET_SECONDS and rank.state == "live" and not rank.arrivals
    is_seen = joining.seconds >= _SEEN_SECONDS and joining.asks_per_second >= _ASKS_PER_SECOND
    return is_quiet and is_seen and rank.stacks is None and not rank.is_stopped
