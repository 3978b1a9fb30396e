"""Whether a loaded host keeps this agent from reading as often as a verdict needs.

Who stood at two readings that lie far apart may have moved in between, and what decides whether it
computes was not looked at often enough. Then nobody is accused before several readings in a row
have found the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from dfx_agent.base.text import seconds_text
from dfx_agent.judge.hang import sentences
from dfx_agent.snapshot import Verdict

ENOUGH_READINGS = 3
_HELD_UP_SECONDS = 5.0  # a calm agent reads once a second


class ReadingGaps:
    """The newest gaps between readings, in seconds."""

    def __init__(self) -> None:
        self._newest: float | None = None
        self._gaps: deque[float] = deque(maxlen=ENOUGH_READINGS)

    def note(self, now: float) -> None:
        """A reading has ended at ``now`` of the monotonic clock."""
        if self._newest is not None:
            self._gaps.append(now - self._newest)
        self._newest = now

    def doubted(self, verdict: Verdict) -> Verdict:
        """The same where readings came in time, else that it is not sure yet."""
        longest = max(self._gaps, default=0.0)
        if longest < _HELD_UP_SECONDS:
            return verdict
        summary = sentences.AGENT_WAS_HELD_UP(
            duration=seconds_text(longest), summary=verdict.summary
        )
        return replace(verdict, state="insufficient evidence", summary=summary, cause="", ranks=())
