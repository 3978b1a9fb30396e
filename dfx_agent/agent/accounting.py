"""Where one process' time went, accounted exactly once, in event time, up to a watermark.

At every instant the open spans without an open child are the leaves. Any stage among the leaves
makes the instant active, for each of these stages once; else the wait that began last has it; else
it is idle. So ``wall = active + waits + idle`` holds by construction, nested spans contribute
their exclusive time and concurrent ones (tasks, threads) never count double.

Spans arrive as records when they end and from the in-flight table while they are open, so that a
ten-minute rollout moves the counters while it runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from dfx_agent.snapshot import PieceKind, TimeSplit
from dfx_agent.wire.records import NO_STEP, STAGE

_MAX_PIECES = 256
_MISSING_POLLS = 3
_CLOSE, _STEP, _OPEN = 0, 1, 2


class SpanEvent(NamedTuple):
    """A span as the guest saw it; ``end_ns`` is None while it is open."""

    span: int
    parent: int
    kind: int
    name: str
    begin_ns: int
    end_ns: int | None
    step: int = NO_STEP


@dataclass(slots=True)
class PieceNs:
    """A stretch of one process' time on its monotonic clock."""

    kind: PieceKind
    name: str
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class Split:
    """Nanoseconds of one window; becomes a TimeSplit."""

    active_ns: int = 0
    idle_ns: int = 0
    stages_ns: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    waits_ns: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

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
    pieces: list[PieceNs] = field(default_factory=list)
    num_omitted_pieces: int = 0

    def add_piece(self, kind: PieceKind, name: str, begin_ns: int, end_ns: int) -> None:
        pieces = self.pieces
        if pieces:
            last = pieces[-1]
            if last.end_ns == begin_ns and last.name == name and last.kind == kind:
                last.end_ns = end_ns
                return
        if len(pieces) < _MAX_PIECES:
            pieces.append(PieceNs(kind, name, begin_ns, end_ns))
        else:
            self.num_omitted_pieces += 1


class _Open:
    __slots__ = ("kind", "name", "num_children", "parent")

    def __init__(self, parent: int, kind: int, name: str) -> None:
        self.parent = parent
        self.kind = kind
        self.name = name
        self.num_children = 0


class TimeAccount:
    """Feed spans, steps and open spans; ``advance`` accounts up to a point of event time."""

    def __init__(self, begin_ns: int) -> None:
        self.watermark_ns = begin_ns
        self.current = Window(None, begin_ns)
        self.finished: list[Window] = []
        self.num_late = 0
        self.num_vanished = 0
        self._before = Split()
        self._events: list[tuple[int, int, int, int, int, int, str]] = []
        self._open: dict[int, _Open] = {}
        self._leaves: dict[int, _Open] = {}
        self._orphans: dict[int, int] = {}
        self._known: set[int] = set()
        self._closing: set[int] = set()
        self._missing: dict[int, int] = {}

    def totals(self) -> Split:
        """Everything accounted so far."""
        total = Split()
        total.merge(self._before)
        total.merge(self.current.split)
        return total

    def add(self, span: int, parent: int, kind: int, name: str, begin_ns: int, end_ns: int) -> None:
        """A finished span; what lies before the watermark and was not known open is late."""
        watermark = self.watermark_ns
        if end_ns <= begin_ns or not span:
            return
        if span not in self._known:
            if begin_ns < watermark:
                self.num_late += 1
                if end_ns <= watermark:
                    return
                begin_ns = watermark
            self._push_open(begin_ns, span, parent, kind, name)
        self._closing.add(span)
        self._events.append((max(end_ns, watermark), _CLOSE, -span, span, 0, 0, ""))

    def begin_step(self, time_ns: int, step: int) -> None:
        self._events.append((max(time_ns, self.watermark_ns), _STEP, 0, step, 0, 0, ""))

    def note_open(self, spans: Iterable[SpanEvent]) -> None:
        """What is open now. A span that was open and left no record is closed after 3 calls."""
        seen = set()
        for span, parent, kind, name, begin, _, _ in spans:
            seen.add(span)
            if span and span not in self._known:
                self._push_open(max(begin, self.watermark_ns), span, parent, kind, name)
        gone = self._known - seen - self._closing
        self._missing = {span: self._missing.get(span, 0) + 1 for span in gone}
        for span, count in self._missing.items():
            if count >= _MISSING_POLLS:
                self.num_vanished += 1
                self._push_close(self.watermark_ns, span)

    def advance(self, until_ns: int) -> None:
        """Account everything up to ``until_ns``; never goes back."""
        if until_ns <= self.watermark_ns:
            return
        self._events.sort()
        done = 0
        for time_ns, op, _, span, parent, kind, name in self._events:
            if time_ns > until_ns:
                break
            done += 1
            if time_ns > self.watermark_ns:
                self._accrue(time_ns)
            if op == _OPEN:
                self._do_open(span, _Open(parent, kind, name))
            elif op == _CLOSE:
                self._do_close(span)
            else:
                self._do_step(time_ns, span)
        del self._events[:done]
        if until_ns > self.watermark_ns:
            self._accrue(until_ns)

    def finish(self, end_ns: int, *, orderly: bool) -> None:
        """The process is gone; an orderly end closes its last step, a death leaves it open."""
        self.advance(max(end_ns, self.watermark_ns))
        if orderly and self.current.step is not None:
            self._do_step(self.watermark_ns, None)

    def _push_open(self, time_ns: int, span: int, parent: int, kind: int, name: str) -> None:
        parent = parent if parent < span else 0  # ids grow; anything else would be a cycle
        self._known.add(span)
        self._events.append((time_ns, _OPEN, span, span, parent, kind, name))

    def _push_close(self, time_ns: int, span: int) -> None:
        self._closing.add(span)
        self._events.append((time_ns, _CLOSE, -span, span, 0, 0, ""))

    def _do_open(self, span: int, opened: _Open) -> None:
        self._open[span] = opened
        opened.num_children = self._orphans.pop(span, 0)  # children that were known before it
        if not opened.num_children:
            self._leaves[span] = opened
        above = self._open.get(opened.parent)
        if above is not None:
            above.num_children += 1
            self._leaves.pop(opened.parent, None)
        elif opened.parent:
            self._orphans[opened.parent] = self._orphans.get(opened.parent, 0) + 1

    def _do_close(self, span: int) -> None:
        self._known.discard(span)
        self._closing.discard(span)
        closed = self._open.pop(span, None)
        if closed is None:
            return
        self._leaves.pop(span, None)
        above = self._open.get(closed.parent)
        if above is not None:
            above.num_children -= 1
            if not above.num_children:
                self._leaves[closed.parent] = above
        elif closed.parent in self._orphans:
            self._orphans[closed.parent] -= 1
            if not self._orphans[closed.parent]:
                del self._orphans[closed.parent]

    def _do_step(self, time_ns: int, step: int | None) -> None:
        self.current.end_ns = time_ns
        self._before.merge(self.current.split)
        self.finished.append(self.current)
        self.current = Window(step, time_ns)

    def _accrue(self, until_ns: int) -> None:
        """Give the time since the watermark to what the open spans say it was."""
        begin = self.watermark_ns
        self.watermark_ns = until_ns
        window = self.current
        split = window.split
        leaves = self._leaves
        if not leaves:
            split.idle_ns += until_ns - begin
            window.add_piece("idle", "idle", begin, until_ns)
            return
        is_alone = len(leaves) == 1
        newest = next(iter(leaves)) if is_alone else self._newest_leaf()
        leaf = leaves[newest]
        name = leaf.name
        if leaf.kind == STAGE:
            split.active_ns += until_ns - begin
            if is_alone:
                split.stages_ns[name] += until_ns - begin
            else:
                for stage in self._stages_among_leaves():
                    split.stages_ns[stage] += until_ns - begin
            window.add_piece("stage", name, begin, until_ns)
        else:
            split.waits_ns[name, self._stage_above(newest)] += until_ns - begin
            window.add_piece("wait", name, begin, until_ns)

    def _newest_leaf(self) -> int:
        """The stage that began last; the wait that began last where no stage is a leaf."""
        stages = [span for span, leaf in self._leaves.items() if leaf.kind == STAGE]
        return max(stages or self._leaves)

    def _stages_among_leaves(self) -> set[str]:
        return {leaf.name for leaf in self._leaves.values() if leaf.kind == STAGE}

    def _stage_above(self, span: int) -> str:
        above = self._open.get(self._open[span].parent)
        while above is not None and above.kind != STAGE:
            above = self._open.get(above.parent)
        return above.name if above else ""
