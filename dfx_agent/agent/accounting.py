"""Where one process' time went, accounted exactly once, in event time, up to a watermark.

At every instant the open spans without an open child are the leaves. Any stage among the leaves
makes the instant active, for each of these stages once; else the wait that began last has it; else
it is idle. So ``wall = active + waits + idle`` holds by construction, nested spans contribute
their exclusive time and concurrent ones (tasks, threads) never count double.

Spans arrive as records when they end and from the in-flight table while they are open, so that a
ten-minute rollout moves the counters while it runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.agent.pieces import PieceNs, Pieces
from dfx_agent.agent.sweep import (
    IDLE,
    STILL_OPEN,
    Owner,
    Owners,
    Row,
    Stretches,
    concurrent,
    nested,
)
from dfx_agent.snapshot import TimeSplit
from dfx_agent.wire.records import NO_STEP, STAGE

_MISSING_POLLS = 3


class SpanEvent(NamedTuple):
    """A span as the guest saw it; ``end_ns`` is None while it is open.

    A collective is one too, named "op@group", its ``step`` is the group's sequence number; its
    time belongs to the wait around it unless it ``is_accounted``.
    """

    span: int
    parent: int
    kind: int
    name: str
    begin_ns: int
    end_ns: int | None
    step: int = NO_STEP
    is_accounted: bool = True


@dataclass(slots=True)
class Split:
    """Nanoseconds of one window; becomes a TimeSplit."""

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
class Window:
    """One step of one process. ``step`` is None before the first ``set_step``."""

    step: int | None
    begin_ns: int
    end_ns: int | None = None
    split: Split = field(default_factory=Split)
    first_pieces: Pieces = field(default_factory=Pieces)

    @property
    def pieces(self) -> list[PieceNs]:
        """The first 256 stretches, without a gap."""
        return self.first_pieces.rows(self.begin_ns)

    def book(self, begin_ns: int, stretches: Stretches) -> None:
        """Time that follows what was booked before."""
        owners, ends = stretches
        for owner, end_ns in zip(owners, ends, strict=True):
            owner.spent_ns += end_ns - begin_ns
            begin_ns = end_ns
        for owner in set(owners):
            self.split.add(owner, owner.spent_ns)
            owner.spent_ns = 0
        self.first_pieces.extend(stretches)


class TimeAccount:
    """Feed spans, steps and open spans; ``advance`` accounts up to a point of event time."""

    def __init__(self, begin_ns: int) -> None:
        self.watermark_ns = begin_ns
        self.current = Window(None, begin_ns)
        self.finished: list[Window] = []
        self.num_late = 0
        self.num_vanished = 0
        self._before = Split()
        self._owners = Owners()
        self._rows: dict[int, Row] = {}  # by span: what is not wholly accounted yet
        self._steps: list[tuple[int, int]] = []
        self._open: set[int] = set()
        self._missing: dict[int, int] = {}

    def totals(self) -> Split:
        """Everything accounted so far."""
        total = Split()
        total.merge(self._before)
        total.merge(self.current.split)
        return total

    def add(self, rows: Mapping[int, Row]) -> None:
        """Spans that have ended, by number; they follow in the order of their records.

        What lies before the watermark and was not known open is late.
        """
        known, watermark = self._rows, self.watermark_ns
        for span, row in rows.items():
            begin, _, end, parent, _, _ = row
            if begin >= watermark and parent < span and begin < end:
                known[span] = row
            else:
                self._add_odd(row)
        if self._open:
            self._open -= rows.keys()

    def _add_odd(self, row: Row) -> None:
        """Its begin is accounted already, or it has no time, or its parent cannot be one."""
        begin_ns, span, end_ns, parent, kind, name = row
        watermark = self.watermark_ns
        if begin_ns < watermark and span not in self._rows and begin_ns < end_ns and span:
            self.num_late += 1
        if not span or end_ns <= max(begin_ns, watermark):
            self._rows.pop(span, None)
            return
        parent = parent if parent < span else 0  # ids grow; anything else would be a cycle
        self._rows[span] = (max(begin_ns, watermark), span, end_ns, parent, kind, name)

    def begin_step(self, time_ns: int, step: int) -> None:
        self._steps.append((max(time_ns, self.watermark_ns), step))

    def note_open(self, spans: Iterable[SpanEvent]) -> None:
        """What is open now. A span that was open and left no record is closed after 3 calls."""
        seen = set()
        for event in spans:
            span, parent = event.span, event.parent
            seen.add(span)
            if span and span not in self._rows and event.is_accounted:
                self._open.add(span)
                parent = parent if parent < span else 0
                begin = max(event.begin_ns, self.watermark_ns)
                self._rows[span] = (begin, span, STILL_OPEN, parent, event.kind, event.name)
        self._missing = {span: self._missing.get(span, 0) + 1 for span in self._open - seen}
        for span, count in self._missing.items():
            if count >= _MISSING_POLLS:
                self.num_vanished += 1
                self._open.discard(span)
                del self._rows[span]

    def advance(self, until_ns: int) -> None:
        """Account everything up to ``until_ns``; never goes back."""
        if until_ns <= self.watermark_ns:
            return
        rows = sorted(self._rows.values())
        stretches = Stretches([], [])
        reached = nested(rows, self.watermark_ns, until_ns, self._owners, stretches)
        if reached < until_ns:
            concurrent(rows, reached, until_ns, self._owners, stretches)
        self._book(stretches, until_ns)
        self.watermark_ns = until_ns
        ahead = bisect_left(rows, (until_ns,))
        across = [row for row in rows[:ahead] if row[2] > until_ns]
        self._rows = {row[1]: row for row in (*across, *rows[ahead:])}

    def finish(self, end_ns: int, *, orderly: bool) -> None:
        """The process is gone; an orderly end closes its last step, a death leaves it open."""
        self.advance(max(end_ns, self.watermark_ns))
        if orderly and self.current.step is not None:
            self._do_step(self.watermark_ns, None)

    def _do_step(self, time_ns: int, step: int | None) -> None:
        self.current.end_ns = time_ns
        self._before.merge(self.current.split)
        self.finished.append(self.current)
        self.current = Window(step, time_ns)

    def _book(self, stretches: Stretches, until_ns: int) -> None:
        """Cut where steps begin."""
        begin = self.watermark_ns
        self._steps.sort()
        while self._steps and self._steps[0][0] <= until_ns:
            time_ns, step = self._steps.pop(0)
            if time_ns > begin:
                owners, ends = stretches
                at = bisect_left(ends, time_ns)
                self.current.book(begin, Stretches(owners[: at + 1], [*ends[:at], time_ns]))
                rest = at + (ends[at] == time_ns)
                stretches = Stretches(owners[rest:], ends[rest:])
                begin = time_ns
            self._do_step(time_ns, step)
        self.current.book(begin, stretches)
