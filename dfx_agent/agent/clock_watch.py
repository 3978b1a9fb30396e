"""Detects and reports that the wall clock of this machine was set.

Monotonic time never jumps. So Unix time minus monotonic time only changes when the wall clock is
set, or while the machine is suspended.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from dfx_agent.agent.sentences import CLOCK_SET
from dfx_agent.snapshot import SegmentProblem

KIND = "clock"
LEAST_SECONDS = 2.0
SHOWN_SECONDS = 3600.0


class ClockWatch:
    """``observe`` after each reading; ``problems`` for an hour after the clock was set."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._offset_ns: int | None = None
        self._step_seconds = 0.0
        self._seen_ns: int | None = None

    def observe(self, begin_offsets_ns: Iterable[int] = ()) -> None:
        """``begin_offsets_ns``: the same difference when processes that are followed began.

        They show a step from before this agent started. 0 where it is not known.
        """
        now_ns = time.monotonic_ns()
        offset_ns = time.time_ns() - now_ns
        offsets_ns = [self._offset_ns] if self._offset_ns else [*filter(None, begin_offsets_ns)]
        if offsets_ns:
            self._offset_ns = offset_ns
        step_ns = max((offset_ns - before_ns for before_ns in offsets_ns), key=abs, default=0)
        if abs(step_ns) >= LEAST_SECONDS * 1e9:
            self._step_seconds, self._seen_ns = step_ns / 1e9, now_ns

    def problems(self) -> list[SegmentProblem]:
        """What people should know while they compare times; empty if nothing was set lately."""
        age_seconds = (time.monotonic_ns() - (self._seen_ns or 0)) / 1e9
        if self._seen_ns is None or age_seconds > SHOWN_SECONDS:
            return []
        seen_seconds = time.time() - age_seconds
        message = CLOCK_SET(
            node=self._node,
            direction="back" if self._step_seconds < 0 else "forward",
            amount=_amount(abs(self._step_seconds)),
            at=time.strftime("%H:%M:%S UTC", time.gmtime(seen_seconds)),
        )
        return [SegmentProblem(self._node, KIND, message)]


def _amount(seconds: float) -> str:
    """As in "5 s", "12 min", "1.0 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
