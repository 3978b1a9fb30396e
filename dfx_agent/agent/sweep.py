"""Who has which stretch of one process' time: sweeps over spans in order of their begin.

``nested`` is the fast way for what one thread does: every span begins inside the innermost open
one and ends before it. It stops at the first span that does not; ``concurrent`` then goes on, for
tasks and threads. Both give the same answer wherever both can answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from dfx_agent.wire.records import STAGE

IDLE = 0
STILL_OPEN = 1 << 63

# begin_ns, span, end_ns (STILL_OPEN while open), parent, kind, name; parent < span
Row = tuple[int, int, int, int, int, str]
# kind, name, innermost stage, begin_ns, end_ns, names of other stages at the same time
Give = Callable[[int, str, str, int, int, Sequence[str]], None]

_Frame = tuple[int, int, int, str, str]  # end_ns, span, kind, name, innermost stage
_GROUND: _Frame = (STILL_OPEN, 0, IDLE, "idle", "")


def nested(rows: Sequence[Row], begin_ns: int, until_ns: int, give: Give) -> int:
    """Give away time up to the first concurrent span, else to ``until_ns``; returns how far."""
    now = begin_ns
    stack: list[_Frame] = []
    top = _GROUND
    for begin, span, end, parent, kind, name in rows:
        if begin >= until_ns:
            break
        while top[0] <= begin:
            if top[0] > now:
                give(top[2], top[3], top[4], now, top[0], ())
                now = top[0]
            top = stack.pop()
        if begin > now:
            give(top[2], top[3], top[4], now, begin, ())
            now = begin
        if top is not _GROUND and (parent != top[1] or end > top[0]):
            return now
        stack.append(top)
        top = (end, span, kind, name, name if kind == STAGE else top[4])
    while top[0] <= until_ns:
        if top[0] > now:
            give(top[2], top[3], top[4], now, top[0], ())
            now = top[0]
        top = stack.pop()
    if until_ns > now:
        give(top[2], top[3], top[4], now, until_ns, ())
    return until_ns


def concurrent(rows: Sequence[Row], begin_ns: int, until_ns: int, give: Give) -> None:
    """Give away the time from ``begin_ns`` to ``until_ns`` whatever the spans look like."""
    events = []
    for row in rows:
        begin, span, end, *_ = row
        if begin >= until_ns:
            break
        if end > begin_ns:
            events.append((max(begin, begin_ns), True, span, row))
            if end <= until_ns:
                events.append((end, False, -span, row))
    events.sort()
    now, spans = begin_ns, _OpenSpans()
    for time_ns, is_begin, _, row in events:
        if time_ns > now:
            spans.give(give, now, time_ns)
            now = time_ns
        if is_begin:
            spans.open(row)
        else:
            spans.close(row)
    if until_ns > now:
        spans.give(give, now, until_ns)


class _OpenSpans:
    """What is open at one instant; the leaves are those without an open child."""

    def __init__(self) -> None:
        self._open: dict[int, Row] = {}
        self._num_children: dict[int, int] = {}
        self._leaves: set[int] = set()
        self._num_leaves_of_stage: dict[str, int] = {}
        # newest first; a span that is no leaf any more is dropped when it comes to the top
        self._stages: list[int] = []
        self._waits: list[int] = []

    def open(self, row: Row) -> None:
        _, span, _, parent, _, _ = row
        self._open[span] = row
        if not self._num_children.get(span):  # a child may be known before its parent
            self._add_leaf(row)
        num_siblings = self._num_children.get(parent, 0)
        self._num_children[parent] = num_siblings + 1
        if not num_siblings and parent in self._open:
            self._remove_leaf(self._open[parent])

    def close(self, row: Row) -> None:
        _, span, _, parent, _, _ = row
        del self._open[span]
        if span in self._leaves:
            self._remove_leaf(row)
        self._num_children[parent] -= 1
        if not self._num_children[parent]:
            del self._num_children[parent]
            if parent in self._open:
                self._add_leaf(self._open[parent])

    def give(self, give: Give, begin_ns: int, end_ns: int) -> None:
        """Stages among the leaves have the time, else the newest wait, else it is idle."""
        if self._num_leaves_of_stage:
            _, _, _, _, kind, name = self._newest(self._stages)
            others = [other for other in self._num_leaves_of_stage if other != name]
            give(kind, name, name, begin_ns, end_ns, others)
        elif self._leaves:
            row = self._newest(self._waits)
            give(row[4], row[5], self._stage_above(row), begin_ns, end_ns, ())
        else:
            give(IDLE, "idle", "", begin_ns, end_ns, ())

    def _add_leaf(self, row: Row) -> None:
        _, span, _, _, kind, name = row
        self._leaves.add(span)
        if kind == STAGE:
            count = self._num_leaves_of_stage
            count[name] = count.get(name, 0) + 1
        heappush(self._stages if kind == STAGE else self._waits, -span)

    def _remove_leaf(self, row: Row) -> None:
        _, span, _, _, kind, name = row
        self._leaves.discard(span)
        if kind == STAGE:
            count = self._num_leaves_of_stage
            count[name] -= 1
            if not count[name]:
                del count[name]

    def _newest(self, heap: list[int]) -> Row:
        while -heap[0] not in self._leaves:
            heappop(heap)
        return self._open[-heap[0]]

    def _stage_above(self, row: Row) -> str:
        above = self._open.get(row[3])
        while above is not None and above[4] != STAGE:
            above = self._open.get(above[3])
        return above[5] if above else ""
