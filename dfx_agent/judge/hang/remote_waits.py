"""Ranks that wait for the answer of a server: seen by the guest, or by their main thread's stack.

A trainer fetches rollouts over HTTP, ZeroMQ or gRPC; a server that answers no more stops it without
any peer that waits. How long a step takes says how long such an answer may take: it lies in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.stacks import RAY_OBJECT, Frame, ProcessStacks, client_of
from dfx_agent.judge.hang import sentences
from dfx_agent.judge.words import have_text, ranks_text

FLOOR_SECONDS = 120.0
LONG_FLOOR_SECONDS = 600.0

_FEWEST_STEPS = 3
_TIMES_MEDIAN, _TIMES_LONGEST = 10, 4


class RemoteWait(NamedTuple):
    """A rank that waits for an answer longer than it may."""

    rank: RankFacts
    answer: str
    seconds: float
    usual_seconds: float  # of a step
    place: Frame | None
    reason: str

    @property
    def is_for_actors(self) -> bool:
        """Whether Ray's actors are to answer: they are processes of the job."""
        return self.answer == RAY_OBJECT

    def __str__(self) -> str:
        return sentences.NO_ANSWER(
            ranks=capitalized(have_text([self.rank])),
            answer=self.answer,
            duration=seconds_text(self.seconds),
            at="" if self.place is None else f", at {self.place}",
            usual=f"{self.usual_seconds:.3g} s",
        )


def overdue(ranks: Sequence[RankFacts]) -> list[RemoteWait]:
    """Those of a role, the longest wait first."""
    found = [wait for rank in ranks if (wait := _overdue(rank, ranks)) is not None]
    return sorted(found, key=lambda wait: -wait.seconds)


def _overdue(rank: RankFacts, ranks: Sequence[RankFacts]) -> RemoteWait | None:
    seconds = _seconds(rank)
    if seconds < FLOOR_SECONDS or rank.arrivals or not rank.is_living:
        return None
    steps = [ns / 1e9 for other in ranks for ns in other.step_durations]
    if len(rank.step_durations) < _FEWEST_STEPS:
        return None
    stacks, is_stopped = rank.stacks, rank.is_stopped
    answer = "" if is_stopped else _answer(rank, stacks)
    if not answer:
        return None
    is_long = stacks is not None and stacks.is_long_function()
    floor = LONG_FLOOR_SECONDS if is_long else FLOOR_SECONDS
    limit = max(floor, _TIMES_MEDIAN * median(steps), _TIMES_LONGEST * max(steps))
    if seconds < limit:
        return None
    usual = f"a step takes {median(steps):.3g} s (median of {len(steps)}, longest {max(steps):.3g})"
    reason = f"{ranks_text([rank])}: {usual}, an answer may take {limit:.0f} s"
    place = stacks.own_frame if stacks is not None else None
    return RemoteWait(rank, answer, seconds, median(steps), place, reason)


def _seconds(rank: RankFacts) -> float:
    """Since it asked; where nobody saw that, since it moved."""
    asks_since_ns = rank.asks_since_ns
    quiet_seconds = rank.quiet_seconds
    if asks_since_ns is None:
        return quiet_seconds
    return min(quiet_seconds, (rank.now_ns - asks_since_ns) / 1e9)


def _answer(rank: RankFacts, stacks: ProcessStacks | None) -> str:
    """What it waits for; "" for no server. Only the stack tells which client it is."""
    seen = client_of(stacks) if stacks is not None else ""
    return seen or ("a server's answer" if rank.asks_since_ns is not None else "")
