"""Host time that a rank is blocked in the collectives of each process group, step by step.

For a judge of several nodes, who has no common clock: how long each rank was in them says who came
last (docs/concepts/waits-and-collectives.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from dfx_agent.facts.steps import GroupTime
from dfx_agent.node.process import ClosedStep, Process

_MAX_ROWS = 8192


class StepGroups:
    """One process: ``add`` each reading of it; then what it passed knows its groups."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str, int, int]] = []  # begin, group, sequence, nanoseconds

    def add(self, process: Process, closed: Iterable[ClosedStep]) -> None:
        """``closed`` are the steps that it has passed by now: their ``groups`` are filled in."""
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
                step.groups = self._taken(begin_ns, end_ns)
        if len(self._rows) > _MAX_ROWS:
            del self._rows[:-_MAX_ROWS]

    def _taken(self, begin_ns: int, end_ns: int) -> dict[str, GroupTime]:
        """Of those begun in that time; what began before is let go."""
        found: dict[str, GroupTime] = {}
        rest = []
        for row in self._rows:
            at_ns, group, sequence, ns = row
            if at_ns >= end_ns:
                rest.append(row)
            elif at_ns >= begin_ns:
                num, newest, seconds = found.get(group, (0, -1, 0.0))
                found[group] = GroupTime(
                    num + 1, max(newest, sequence), round(seconds + ns / 1e9, 9)
                )
        self._rows = rest
        return {
            name: time._replace(blocked_seconds=round(time[2], 9)) for name, time in found.items()
        }
