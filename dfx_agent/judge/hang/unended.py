"""A rank that cannot end: it frees its process group with the GIL held, and gloo needs the GIL.

The deadlock is torch's own, with or without a guest (docs/design.md): the main thread joins gloo's
loop in a destructor, that loop frees tensors and asks for the GIL every 5 ms. Nothing else has this
shape for long: a job that saves, evaluates or sleeps joins no thread of gloo, and a guest can write
stacks meanwhile, which it cannot while the GIL is held.
"""

from __future__ import annotations

import time
import weakref
from typing import NamedTuple

from dfx_agent.durations import seconds_text
from dfx_agent.host.joined_thread import Joined, joined_by_main
from dfx_agent.judge.words import ranks_text
from dfx_agent.node.track import Track

CAUSE = "does not end"
QUIET_SECONDS = 15.0  # by then a guest would have written stacks

_LOOK_EVERY_SECONDS = 1.0
_SEEN_SECONDS = 5.0
_GLOO_LOOP = "pt_gloo"  # pt_gloo_runloop: torch names its thread so
_ASKS_PER_SECOND = 20.0  # who waits for the GIL wakes up every 5 ms


class _Stand(NamedTuple):
    """First and last look at one join."""

    first_seconds: float
    last_seconds: float
    first: Joined
    last: Joined

    @property
    def seconds(self) -> float:
        return self.last_seconds - self.first_seconds

    @property
    def asks_per_second(self) -> float:
        return (self.last.thread_waits - self.first.thread_waits) / max(self.seconds, 1e-9)


class Unended(NamedTuple):
    """A rank in that deadlock. ``seconds``: since it last moved."""

    rank: Track
    seconds: float
    loop: str
    asks_per_second: float

    def __str__(self) -> str:
        return (
            f"{ranks_text([self.rank])} does not end: for {seconds_text(self.seconds)} it has been "
            "freeing its process group, a deadlock of torch with itself; end it by "
            f"kill -9 {self.rank.process.pid}"
        )

    @property
    def reason(self) -> str:
        return (
            f"pid {self.rank.process.pid}: its main thread waits for {self.loop} to end and holds "
            f"Python's lock, which {self.loop} asks for {self.asks_per_second:.0f} times a second; "
            "seen with torch 2.13 and gloo, not caused by the job's own code"
        )


class EndWatch:
    """Looks at the ranks of a run that are quiet."""

    def __init__(self) -> None:
        self._stands: weakref.WeakKeyDictionary[Track, _Stand] = weakref.WeakKeyDictionary()

    def unended(self, ranks: list[Track], now_ns: int) -> list[Unended]:
        """Those of a role, the longest first."""
        found = [each for rank in ranks if (each := self._judge(rank, now_ns)) is not None]
        return sorted(found, key=lambda each: -each.seconds)

    def _judge(self, rank: Track, now_ns: int) -> Unended | None:
        seconds = rank.quiet_seconds(now_ns)
        if seconds < QUIET_SECONDS or rank.process.state != "live" or rank.arrivals:
            self._stands.pop(rank, None)
            return None
        stand = self._look(rank)
        stacks, is_stopped = rank.look_closer(now_ns)
        if stand is None or stand.seconds < _SEEN_SECONDS or stacks is not None or is_stopped:
            return None
        if stand.asks_per_second < _ASKS_PER_SECOND:
            return None
        return Unended(rank, seconds, stand.last.name, stand.asks_per_second)

    def _look(self, rank: Track) -> _Stand | None:
        """At most once a second; anew where the main thread has woken up."""
        now, known = time.monotonic(), self._stands.get(rank)
        if known is not None and now - known.last_seconds < _LOOK_EVERY_SECONDS:
            return known
        joined = joined_by_main(rank.process.pid)
        if joined is None or not joined.name.startswith(_GLOO_LOOP):
            self._stands.pop(rank, None)
            return None
        same = known is not None and known.first[:3] == joined[:3]
        first = (known.first_seconds, known.first) if known is not None and same else (now, joined)
        stand = self._stands[rank] = _Stand(first[0], now, first[1], joined)
        return stand
