"""Host time that a rank is blocked in the collectives of each process group, step by step.

The judge of several nodes has no common clock. It compares how long each rank was blocked to find
the rank that arrived last (docs/concepts/waits-and-collectives.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from dfx_agent.facts.steps import GroupTime
from dfx_agent.node.process import Process
from dfx_agent.node.time.closed_step import ClosedStep

_MAX_ROWS = 8192


class StepGroups:
    """Blocked time of one process by step and group; call ``add`` after each poll."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str, int, int]] = []  # begin, group, sequence, nanoseconds

    def add(self, process: Process, closed: Iterable[ClosedStep]) -> None:
        """Fill in the ``groups`` of the finished steps in ``closed``."""
        self._rows += (
            (record.begin_ns, record.group, record.sequence, record.end_ns - record.begin_ns)
            for record in process.collectives
            if record.sequence is not None
            and (record.is_blocking or record.is_wait)
            and not record.has_failed
        )
        for step in closed:
            begin_ns, end_ns = step.window.begin_ns, step.window.end_ns
            if end_ns is not None:
                step.groups = self._pop(begin_ns, end_ns)
        if len(self._rows) > _MAX_ROWS:
            del self._rows[:-_MAX_ROWS]

    def _pop(self, begin_ns: int, end_ns: int) -> dict[str, GroupTime]:
        """Times of collectives that began in this interval; earlier ones are dropped."""
        times: dict[str, GroupTime] = {}
        later_rows = []
        for row in self._rows:
            at_ns, group, sequence, ns = row
            if at_ns >= end_ns:
                later_rows.append(row)
            elif at_ns >= begin_ns:
                num, last_sequence, seconds = times.get(group, (0, -1, 0.0))
                times[group] = GroupTime(
                    num + 1, max(last_sequence, sequence), round(seconds + ns / 1e9, 9)
                )
        self._rows = later_rows
        return {
            name: time._replace(blocked_seconds=round(time[2], 9)) for name, time in times.items()
        }
