"""Exact times at which each stage of a process last began and ended, for external timelines.

A stage that repeats within a step uses 4 slots in turn, so that its last executions are separate.
"""

from __future__ import annotations

from dataclasses import dataclass

from dfx_agent.node.time.account import StepInterval
from dfx_agent.node.time.sweep import Row

NUM_SLOTS = 4
_MAX_OPEN = 4096
_SHORTEST_IDLE_NS = 10**6


@dataclass
class Stamp:
    """When a stage began and ended."""

    begin_ns: int
    end_ns: int | None = None  # None while the stage is open


class Stamps:
    """Stamps of one process. Idle time is handled like a stage."""

    def __init__(self) -> None:
        self.by_slot: dict[tuple[str, int], Stamp] = {}  # (stage, slot) -> stamp
        self._open: dict[int, Stamp] = {}
        self._num_begun: dict[str, int] = {}

    def begin(self, span: int, stage: str, begin_ns: int) -> Stamp:
        """Note an open span of the stage."""
        stamp = self._open.get(span)
        if stamp is None:
            if len(self._open) >= _MAX_OPEN:
                self._open.clear()  # spans whose end records were lost
            num = self._num_begun.get(stage, 0)
            self._num_begun[stage] = num + 1
            stamp = self._open[span] = self.by_slot[stage, num % NUM_SLOTS] = Stamp(begin_ns)
        return stamp

    def end(self, stage: str, rows: list[Row]) -> None:
        """Note ended spans of this stage; only the last 4 leave a stamp."""
        early = rows[:-NUM_SLOTS]
        if early:
            open_spans = [row[1] for row in early if row[1] in self._open]
            for span in open_spans:
                self._open.pop(span, None)  # a corrupted segment may contain an id twice
            num_new = len(early) - len(open_spans)
            self._num_begun[stage] = self._num_begun.get(stage, 0) + num_new
        for begin_ns, span, end_ns, *_ in rows[-NUM_SLOTS:]:
            self.begin(span, stage, begin_ns).end_ns = end_ns
            del self._open[span]

    def end_step(self, window: StepInterval) -> None:
        """Restart the slots for the next step, and store the last idle slices of this one."""
        self._num_begun.clear()
        idle = window.first_pieces.idle(window.begin_ns, _SHORTEST_IDLE_NS)
        for slot, (begin_ns, end_ns) in enumerate(idle[-NUM_SLOTS:]):
            self.by_slot["idle", slot] = Stamp(begin_ns, end_ns)
