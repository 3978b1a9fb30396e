"""Assigns each time slice of a process to a stage, a wait or idle time.

- ``sums_if_nested`` is the fastest: it only sums, for a single thread whose spans nest. The
  exclusive time of a span is its length without its children.
- ``nested`` also returns the slices, for spans that nest. It stops at the first span that does not.
- ``concurrent`` handles all spans, including those of tasks and threads.

Where two of them apply, they give the same result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from dfx_agent.wire.records import STAGE, WAIT

IDLE = 0  # kind of an Owner, next to STAGE and WAIT
STILL_OPEN = 1 << 63

# begin_ns, span, end_ns (STILL_OPEN while open), parent, kind, name; parent < span
Row = tuple[int, int, int, int, int, str]


class Owner:
    """What a time slice is spent on: a stage, a wait within a stage, or nothing (idle)."""

    __slots__ = ("kind", "name", "others", "spent_ns", "stage", "waits")

    def __init__(
        self, kind: int, name: str, waits: _Waits | None = None, others: tuple[str, ...] = ()
    ) -> None:
        self.kind = kind
        self.name = name
        # waits in the innermost stage, by kind
        self.waits = _Waits(name if kind == STAGE else "") if waits is None else waits
        self.stage = self.waits.stage
        self.others = others  # further stages at the same time
        # summed up here because a dict by names would take twice the time
        self.spent_ns = 0


class _Waits(dict[str, Owner]):
    """Waits by kind, within one stage ("" is outside all stages)."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage

    def __missing__(self, name: str) -> Owner:
        owner = self[name] = Owner(WAIT, name, self)
        return owner


class Owners(dict[str, Owner]):
    """Stages by name; ``idle`` owns the remaining time."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = Owner(IDLE, "idle")

    def __missing__(self, stage: str) -> Owner:
        owner = self[stage] = Owner(STAGE, stage)
        return owner


class Stretches(NamedTuple):
    """Time slices without a gap: ``owners[i]`` owns the time up to ``ends[i]``."""

    owners: list[Owner]
    ends: list[int]


class Sums(NamedTuple):
    """Exclusive time by stage and wait."""

    stages_ns: dict[str, int]
    waits_ns: dict[tuple[str, str], int]  # (kind of wait, stage around it) -> ns
    num_ends: int  # number of time slices
    last_ns: int  # end of the last span


_Inner = list[tuple[str, int]]  # waits by kind whose stage has not been reached yet


def sums_if_nested(rows: Sequence[Row], begin_ns: int) -> Sums | None:  # noqa: C901, PLR0912 (hot)
    """Sum ``rows`` from ``begin_ns`` on, in the order of their ends; None if spans do not nest.

    Children end before their parent, so they wait for it on a stack. An entry has the parent, the
    children's length, the first child's begin, the end before that, and waits without a stage.
    """
    stages: defaultdict[str, int] = defaultdict(int)
    waits: defaultdict[tuple[str, str], int] = defaultdict(int)
    stack: list[tuple[int, int, int, int, _Inner | None]] = []
    around, covered, first, before, inner = -1, 0, 0, 0, None
    num_met, last_end, is_stage = 0, begin_ns, STAGE  # local names are faster
    for begin, span, end, parent, kind, name in rows:
        if span != around:
            if begin <= last_end:
                if begin < last_end:
                    return None
                num_met += 1
            if parent != around:
                stack.append((around, covered, first, before, inner))
                around, covered, first, before, inner = parent, end - begin, begin, last_end, None
            else:
                covered += end - begin
            if kind == is_stage:
                stages[name] += end - begin
            elif inner is None:
                inner = [(name, end - begin)]
            else:
                inner.append((name, end - begin))
        else:
            if begin <= before:
                if begin < before:
                    return None
                num_met += 1
            elif begin >= first:
                if begin > first:
                    return None
                num_met += 1
            num_met += end == last_end
            length, earlier, under = end - begin, before, inner
            if kind == is_stage:
                stages[name] += length - covered
                for wait, wait_ns in under or ():
                    waits[wait, name] += wait_ns
                under = None
            else:
                under = [] if under is None else under
                under.append((name, length - covered))
            around, covered, first, before, inner = stack.pop()
            if parent != around:
                stack.append((around, covered, first, before, inner))
                around, covered, first, before, inner = parent, length, begin, earlier, under
            else:
                covered += length
                if under is not None:
                    inner = under if inner is None else inner + under
        last_end = end
    for outer in (inner, *(frame[4] for frame in stack)):
        for wait, wait_ns in outer or ():
            waits[wait, ""] += wait_ns
    return Sums(stages, waits, 2 * len(rows) - num_met, last_end)


_Frame = tuple[int, int, Owner]  # end_ns, span, owner of the time outside its children


def nested(
    rows: Sequence[Row], begin_ns: int, until_ns: int, stages: Owners, out: Stretches
) -> int:
    """Assign time up to the first concurrent span, else to ``until_ns``; returns that time."""
    own, end_at = out.owners.append, out.ends.append
    stack: list[_Frame] = []
    now, top_end, top_span, owner = begin_ns, STILL_OPEN, 0, stages.idle
    for begin, span, end, parent, kind, name in rows:
        if begin >= until_ns:
            break
        while top_end <= begin:
            if top_end > now:
                own(owner)
                end_at(top_end)
                now = top_end
            top_end, top_span, owner = stack.pop()
        if begin > now:
            own(owner)
            end_at(begin)
            now = begin
        if top_span and (parent != top_span or end > top_end):
            return now
        stack.append((top_end, top_span, owner))
        owner = stages[name] if kind == STAGE else owner.waits[name]
        top_end, top_span = end, span
    while top_end <= until_ns:
        if top_end > now:
            own(owner)
            end_at(top_end)
            now = top_end
        top_end, top_span, owner = stack.pop()
    if until_ns > now:
        own(owner)
        end_at(until_ns)
    return until_ns


def concurrent(
    rows: Sequence[Row], begin_ns: int, until_ns: int, stages: Owners, out: Stretches
) -> None:
    """Assign the time from ``begin_ns`` to ``until_ns``, for spans of any shape."""
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
    now, spans = begin_ns, _OpenSpans(stages)
    for time_ns, is_begin, _, row in events:
        if time_ns > now:
            out.owners.append(spans.owner())
            out.ends.append(time_ns)
            now = time_ns
        if is_begin:
            spans.open(row)
        else:
            spans.close(row)
    if until_ns > now:
        out.owners.append(spans.owner())
        out.ends.append(until_ns)


class _OpenSpans:
    """The spans that are open at one instant; a leaf is one without an open child."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._open: dict[int, Row] = {}
        self._num_children: dict[int, int] = {}
        self._leaves: set[int] = set()
        self._num_leaves_of_stage: dict[str, int] = {}
        # latest first; a span that is no leaf any more is dropped when it reaches the top
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

    def owner(self) -> Owner:
        """The stages among the leaves, else the wait that began last, else idle."""
        if self._num_leaves_of_stage:
            name = self._latest(self._stages)[5]
            others = tuple(other for other in self._num_leaves_of_stage if other != name)
            owner = self._owners[name]
            return Owner(STAGE, name, owner.waits, others) if others else owner
        if self._leaves:
            row = self._latest(self._waits)
            stage = self._stage_above(row)
            return (self._owners[stage] if stage else self._owners.idle).waits[row[5]]
        return self._owners.idle

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

    def _latest(self, heap: list[int]) -> Row:
        while -heap[0] not in self._leaves:
            heappop(heap)
        return self._open[-heap[0]]

    def _stage_above(self, row: Row) -> str:
        above = self._open.get(row[3])
        while above is not None and above[4] != STAGE:
            above = self._open.get(above[3])
        return above[5] if above else ""
