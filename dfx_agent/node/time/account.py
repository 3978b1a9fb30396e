"""Accounts the time of one process: every instant counts exactly once, up to a watermark.

A leaf is an open span without an open child. An instant belongs

- to the stages among the leaves, if there are any, once for each of them,
- else to the wait that began last,
- else it is idle.

So ``wall = active + waits + idle`` always holds. Nested spans contribute their exclusive time, and
concurrent spans (tasks, threads) never count twice. A span is read from its record when it has
ended, and from the in-flight table while it is open, so a ten-minute rollout counts while it runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from dfx_agent.node.time.pieces import PieceNs, Pieces
from dfx_agent.node.time.sweep import (
    IDLE,
    STILL_OPEN,
    Owner,
    Owners,
    Row,
    Stretches,
    Sums,
    concurrent,
    nested,
    sums_if_nested,
)
from dfx_agent.snapshot import TimeSplit
from dfx_agent.wire.records import COLLECTIVES, NO_STEP, STAGE, WAIT

_MISSING_POLLS = 3
_END = itemgetter(2)
_FEW_ROWS = 16


class SpanEvent(NamedTuple):
    """A span as the guest recorded it.

    A collective is a span too. Its ``name`` is "operation@group", and its ``step`` is the sequence
    number in the group.
    """

    span: int
    parent: int
    kind: int
    name: str
    begin_ns: int
    end_ns: int | None  # None while it is open
    step: int = NO_STEP
    is_accounted: bool = True  # False: the time belongs to the wait around it
    thread: int = 0  # native id, 0 unknown


def as_accounted(event: SpanEvent) -> SpanEvent:
    """Convert a collective to a wait of kind "collective"; other spans are returned unchanged."""
    if event.kind in COLLECTIVES:
        return event._replace(kind=WAIT, name="collective")
    return event


@dataclass(slots=True)
class Split:
    """Nanoseconds of one step by stage and wait; ``as_seconds`` converts it to a TimeSplit."""

    active_ns: int = 0
    idle_ns: int = 0
    stages_ns: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    waits_ns: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, owner: Owner, length_ns: int) -> None:
        if owner.kind == STAGE:
            self.active_ns += length_ns
            for stage in (owner.name, *owner.others):
                self.stages_ns[stage] += length_ns
        elif owner.kind == IDLE:
            self.idle_ns += length_ns
        else:
            self.waits_ns[owner.name, owner.stage] += length_ns

    def add_sums(self, sums: Sums, length_ns: int) -> None:
        """Add ``length_ns`` of time. The part that is not in ``sums`` is idle."""
        active_ns = sum(sums.stages_ns.values())
        self.active_ns += active_ns
        self.idle_ns += length_ns - active_ns - sum(sums.waits_ns.values())
        for stage, value in sums.stages_ns.items():
            if value:
                self.stages_ns[stage] += value
        for wait, value in sums.waits_ns.items():
            if value:
                self.waits_ns[wait] += value

    def merge(self, other: Split) -> None:
        self.active_ns += other.active_ns
        self.idle_ns += other.idle_ns
        for stage, value in other.stages_ns.items():
            self.stages_ns[stage] += value
        for wait, value in other.waits_ns.items():
            self.waits_ns[wait] += value

    def as_seconds(self) -> TimeSplit:
        waits: dict[str, dict[str, float]] = {}
        for (kind, stage), value in self.waits_ns.items():
            waits.setdefault(kind, {})[stage] = value / 1e9
        wall_ns = self.active_ns + self.idle_ns + sum(self.waits_ns.values())
        stages = {stage: value / 1e9 for stage, value in self.stages_ns.items()}
        return TimeSplit(wall_ns / 1e9, self.active_ns / 1e9, self.idle_ns / 1e9, stages, waits)


@dataclass(slots=True)
class StepInterval:
    """One step of one process."""

    step: int | None  # None before the first ``set_step``
    begin_ns: int
    end_ns: int | None = None
    split: Split = field(default_factory=Split)
    first_pieces: Pieces = field(default_factory=Pieces)

    @property
    def pieces(self) -> list[PieceNs]:
        """The first 256 time slices, without a gap."""
        return self.first_pieces.rows(self.begin_ns)

    def book(self, begin_ns: int, stretches: Stretches) -> None:
        """Add time directly after what has been added before."""
        owners, ends = stretches
        for owner, end_ns in zip(owners, ends, strict=True):
            owner.spent_ns += end_ns - begin_ns
            begin_ns = end_ns
        for owner in set(owners):
            self.split.add(owner, owner.spent_ns)
            owner.spent_ns = 0
        self.first_pieces.extend(stretches)


class _Ending:
    """Spans in the order of their ends; some of them cross the instant that is accounted.

    A slow reader has thousands of spans and hundreds of such instants. So each span is visited only
    when it begins and where it is cut.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = sorted(rows, key=_END)
        self._indexes: list[int] | None = None  # the last span to begin is first
        self._begun: list[int] = []

    def cut(self, until_ns: int, end: int) -> list[Row]:
        """Spans from index ``end`` on that cross ``until_ns``; their begin is then set to it.

        The returned rows are unchanged.
        """
        rows = self.rows
        if self._indexes is None:
            indexes = range(end, len(rows))
            self._indexes = sorted(indexes, key=lambda index: rows[index][0], reverse=True)
        while self._indexes and rows[self._indexes[-1]][0] < until_ns:
            self._begun.append(self._indexes.pop())
        self._begun = [index for index in self._begun if index >= end]
        across = [rows[index] for index in self._begun]
        for index in self._begun:
            rows[index] = (until_ns, *rows[index][1:])
        return across


class TimeAccount:
    """Add spans, steps and open spans; ``advance`` then accounts up to a point in event time."""

    def __init__(self, begin_ns: int) -> None:
        self.watermark_ns = begin_ns
        self.current = StepInterval(None, begin_ns)
        self.finished: list[StepInterval] = []
        self.num_late = 0
        self.num_vanished = 0
        self._before = Split()
        self._owners = Owners()
        # by span id: partly accounted, new since the last ``advance``, open
        self._ended: dict[int, Row] = {}
        self._fresh: dict[int, Row] = {}
        self._open: dict[int, Row] = {}
        self._steps: list[tuple[int, int]] = []
        self._missing: dict[int, int] = {}

    def totals(self) -> Split:
        """All time accounted so far."""
        total = Split()
        total.merge(self._before)
        total.merge(self.current.split)
        return total

    def add_new(self, rows: dict[int, Row]) -> None:
        """Add ended spans by id, in the order of their records.

        Every span must begin after the watermark, have a positive length and a parent with a
        smaller id; ``add`` accepts all others.
        """
        self._fresh = self._fresh | rows if self._fresh else rows.copy()
        if self._open:
            for span in self._open.keys() & rows.keys():
                del self._open[span]

    def add(self, rows: Mapping[int, Row]) -> None:
        """Add ended spans by id, without restrictions.

        A span before the watermark that was not known to be open counts as late.
        """
        watermark = self.watermark_ns
        for begin, span, end, parent, kind, name in rows.values():
            if begin < min(watermark, end) and span and not self._knows(span):
                self.num_late += 1
            for rows_by_span in (self._open, self._ended, self._fresh):
                rows_by_span.pop(span, None)
            if span and end > max(begin, watermark):
                above = parent if parent < span else 0  # ids grow; a larger parent makes a cycle
                self._fresh[span] = (max(begin, watermark), span, end, above, kind, name)

    def begin_step(self, time_ns: int, step: int) -> None:
        self._steps.append((max(time_ns, self.watermark_ns), step))

    def note_open(self, spans: Iterable[SpanEvent]) -> None:
        """Set the open spans. A span that vanishes without a record is dropped after 3 calls."""
        seen = set()
        for event in spans:
            span, parent = event.span, event.parent
            seen.add(span)
            if span and event.is_accounted and not self._knows(span):
                parent = parent if parent < span else 0
                begin = max(event.begin_ns, self.watermark_ns)
                self._open[span] = (begin, span, STILL_OPEN, parent, event.kind, event.name)
        self._missing = {span: self._missing.get(span, 0) + 1 for span in self._open.keys() - seen}
        for span, count in self._missing.items():
            if count >= _MISSING_POLLS:
                self.num_vanished += 1
                del self._open[span]

    def advance(self, until_ns: int) -> None:
        """Account all time up to ``until_ns``; does nothing if that is before the watermark."""
        if until_ns <= self.watermark_ns:
            return
        fresh, self._fresh = self._fresh, {}
        early = [row for row in fresh.values() if row[0] < until_ns]
        for row in early:
            del fresh[row[1]]
            self._ended.pop(row[1], None)
        ending = _Ending((*self._ended.values(), *early))
        done = 0
        self._steps.sort()
        while self._steps and self._steps[0][0] <= until_ns:
            time_ns, step = self._steps.pop(0)
            done = self._reach(time_ns, ending, done)
            self._do_step(time_ns, step)
        done = self._reach(until_ns, ending, done)
        self._ended = fresh
        self._ended.update((row[1], row) for row in ending.rows[done:])

    def finish(self, end_ns: int, *, orderly: bool, has_step: bool = True) -> None:
        """The process has exited. A normal exit closes its last step, a crash leaves it open.

        With ``has_step`` false, the normal exit happened between two steps.
        """
        self.advance(max(end_ns, self.watermark_ns))
        if orderly and not has_step:
            self.current.step = None
        elif orderly and self.current.step is not None:
            self._do_step(self.watermark_ns, None)

    def _knows(self, span: int) -> bool:
        return span in self._open or span in self._ended or span in self._fresh

    def _do_step(self, time_ns: int, step: int | None) -> None:
        self.current.end_ns = time_ns
        self._before.merge(self.current.split)
        self.finished.append(self.current)
        self.current = StepInterval(step, time_ns)

    def _reach(self, until_ns: int, ending: _Ending, done: int) -> int:
        """Account up to ``until_ns`` from row ``done`` on; returns the first row not accounted.

        Single time slices are recorded only until the step's list of pieces is full.
        """
        rows = ending.rows
        end = bisect_right(rows, until_ns, done, key=_END)
        pieces = self.current.first_pieces
        while not pieces.num_omitted and end - done > _FEW_ROWS:
            some = min(end, done + max(_FEW_ROWS, pieces.num_free // 2)) - 1
            time_ns = rows[some][2]
            next_done = bisect_right(rows, time_ns, some, end, key=_END)
            self._account(time_ns, ending, done, next_done)
            done = next_done
        self._account(until_ns, ending, done, end)
        return end

    def _account(self, until_ns: int, ending: _Ending, first: int, end: int) -> None:
        """Account the rows from ``first`` to ``end``, which end before ``until_ns``.

        Spans that continue are cut: this part ends at ``until_ns``, the rest begins there.
        """
        begin_ns = self.watermark_ns
        if until_ns <= begin_ns:
            return
        across = [row for row in self._open.values() if row[0] < until_ns]
        across += ending.cut(until_ns, end)
        cut = [
            (max(begin, begin_ns), span, until_ns, parent, kind, name)
            for begin, span, _, parent, kind, name in across
        ]
        cut.sort(reverse=True)  # the innermost span ends first
        self._book([*ending.rows[first:end], *cut], until_ns)
        self.watermark_ns = until_ns

    def _book(self, rows: list[Row], until_ns: int) -> None:
        """Add ``rows``, which lie between watermark and ``until_ns``, in the order of ends."""
        begin_ns, window = self.watermark_ns, self.current
        if window.first_pieces.num_omitted:
            sums = sums_if_nested(rows, begin_ns)
            if sums is not None:
                window.split.add_sums(sums, until_ns - begin_ns)
                window.first_pieces.num_omitted += sums.num_ends + (sums.last_ns < until_ns)
                return
        rows.sort()
        stretches = Stretches([], [])
        reached = nested(rows, begin_ns, until_ns, self._owners, stretches)
        if reached < until_ns:
            concurrent(rows, reached, until_ns, self._owners, stretches)
        window.book(begin_ns, stretches)
